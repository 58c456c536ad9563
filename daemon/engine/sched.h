/* The scheduler loop. */
#ifndef EPD_ENGINE_SCHED_H
#define EPD_ENGINE_SCHED_H

#include "daemon/engine/engine.h"

/* Run until the supervisor stops the engine or is gone (epd_control_state says which). */
void epd_sched_run(struct epd_engine *engine);

#endif
