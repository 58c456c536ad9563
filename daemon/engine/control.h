/* The engine's end of the supervisor's socketpair. Thread rule: the scheduler. */
#ifndef EPD_ENGINE_CONTROL_H
#define EPD_ENGINE_CONTROL_H

#include "daemon/engine/engine.h"

enum epd_control_state {
    EPD_CONTROL_OPEN,
    EPD_CONTROL_STOP,   /* STOP was handled: leave */
    EPD_CONTROL_LOST,   /* the supervisor is gone */
    EPD_CONTROL_BROKEN, /* it sends what no supervisor of this build would */
};

/* sock: owned. */
enum epd_status epd_control_create(struct epd_engine *engine, int sock, struct epd_error *err);
void epd_control_destroy(struct epd_engine *engine);
/* Handle what has arrived. True when anything was handled. */
bool epd_control_poll(struct epd_engine *engine);
enum epd_control_state epd_control_state(const struct epd_engine *engine);
/* Block until CONFIG has been handled (start only), at most timeout_ms. */
enum epd_status epd_control_wait_config(struct epd_engine *engine, int timeout_ms,
                                        struct epd_error *err);
uint32_t epd_control_workers(const struct epd_engine *engine);
uint32_t epd_control_spin_us(const struct epd_engine *engine);

#endif
