/* The status page: one 4096-byte memfd per engine incarnation. The engine creates and writes it,
 * the supervisor maps it too (to mark a dead engine), then it is sealed against future writers;
 * clients and peer engines map it read-only. */
#ifndef EPD_PROTO_STATUS_H
#define EPD_PROTO_STATUS_H

#include <stdint.h>

#define EPD_STATUS_PAGE_BYTES 4096u
#define EPD_STATUS_MAGIC 0x3154415453445045ull /* "EPDSTAT1" */

enum epd_engine_state {
    EPD_ENGINE_STARTING = 1, /* mapped, not yet serving */
    EPD_ENGINE_RUNNING = 2,
    EPD_ENGINE_STOPPED = 3,     /* left in order */
    EPD_ENGINE_DEAD = 4,        /* written by the supervisor after it reaped the engine */
    EPD_ENGINE_DAEMON_LOST = 5, /* the supervisor is gone; open a new session */
};

struct epd_status_page {
    uint64_t magic;
    uint32_t abi;
    uint32_t device;
    uint64_t incarnation; /* 1, 2, ... of this device */
    uint32_t pid;         /* in the daemon's pid namespace */
    uint32_t state;       /* enum epd_engine_state, release/acquire */
    uint8_t pad0[32];
    uint32_t sleeping; /* 1 while the engine may sleep: ring the doorbell (seq_cst) */
    uint32_t reserved0;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, at least once a second while awake */
    uint64_t ops;          /* completions posted */
    uint64_t tasks;        /* tasks run */
    uint64_t wakeups;      /* times the scheduler slept and woke */
    uint8_t pad1[24];
};

_Static_assert(sizeof(struct epd_status_page) == 128, "two cache lines");

#endif
