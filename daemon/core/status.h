/* What GetStatus and the List* calls show, as plain structs. Thread rule: the loop's thread; what
 * is filled in stays valid (no pointers into objects but to static strings, unless said). */
#ifndef EPD_CORE_STATUS_H
#define EPD_CORE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/device.h"
#include "daemon/core/fsm.h"
#include "proto/layout.h"

struct epd_group;

struct epd_status_counter {
    const char *name, *help;
    uint64_t value;
};
#define EPD_STATUS_PROBLEMS 24u
struct epd_status_summary {
    const char *state;
    uint64_t uptime_ms;
    unsigned sessions, groups, devices;
    unsigned n_problems;
    char problem[EPD_STATUS_PROBLEMS][256];
};
void epd_status_summary(const struct epd_core *core, struct epd_status_summary *out);
/* Counter i = 0, 1, ...; false behind the last. */
bool epd_status_counter(const struct epd_core *core, unsigned i, struct epd_status_counter *out);
/* i < devices. */
void epd_status_device(const struct epd_core *core, unsigned i, struct epd_device_info *out);

struct epd_status_session {
    uint64_t id, age_ms, bytes;
    const char *name, *version; /* borrowed until the next turn of the loop */
    const char *state;
    uid_t uid;
    pid_t pid;
    unsigned leases, buffers;
};
/* *cursor starts at 0; false at the end. */
bool epd_status_session(const struct epd_core *core, uint32_t *cursor,
                        struct epd_status_session *out);

struct epd_status_seat {
    uint32_t rank, device;
    const char *state;
    uint64_t session, ops, wait_us, work_us;
    pid_t pid;
};
struct epd_status_group {
    uint64_t id;
    const char *name, *cause; /* borrowed until the next turn of the loop */
    const char *state;
    struct epd_shape shape;
    uint32_t timeout_ms, first_timeout_ms, generation;
    bool ephemeral, allow_absent, has_key;
    uid_t uid;
    uint64_t failed_epochs;
    struct epd_status_seat seat[EPD_MAX_RANKS];
};
void epd_status_of_group(const struct epd_group *group, struct epd_status_group *out);
bool epd_status_group(const struct epd_core *core, uint32_t *cursor, struct epd_status_group *out);

/* Fetch the seats' counters from the engines, at most for EPD_STATUS_WAIT_MS; then done. */
#define EPD_STATUS_WAIT_MS 100u
void epd_status_refresh(struct epd_core *core, void (*done)(void *arg), void *arg);

/* State machine i = 0, 1, ...; NULL behind the last. */
const struct epd_fsm *epd_status_table(unsigned i);

#endif
