/* A group with one agent for each rank, seat in slot 0: what most fault and contract tests need. */
#ifndef EPD_TESTS_CLUSTER_H
#define EPD_TESTS_CLUSTER_H

#include <stdint.h>

#include "tests/support/agent.h"

#define CLUSTER_MAX 8u

struct cluster_spec {
    const char *name; /* NULL: one that was not used before */
    uint32_t ranks;   /* 0: 2 */
    uint32_t devices; /* ranks go round robin over devices [first_device, +devices); 0: 1 */
    uint32_t first_device;
    uint32_t layout;         /* 0: expert-major */
    uint32_t tokens, hidden; /* 0: 16, 64 */
    uint32_t sets, flags, depth;
    uint32_t timeout_ms; /* of every op; scaled; 0: 20 s */
    uint32_t keep;       /* 1: the group stays when nobody has a seat */
    uint32_t ids_type;   /* 0: int64 */
    uint32_t b_pattern;  /* enum b_pattern */
};
struct cluster {
    struct daemon *daemon; /* borrowed */
    struct agent a[CLUSTER_MAX];
    uint32_t ranks;
    uint64_t group;
    struct group_spec spec;
    struct seat_config seat; /* rank differs */
};

/* Start the agents, create the group, take the seats. */
void cluster_open(struct cluster *c, struct daemon *d, const struct cluster_spec *spec);
/* Every agent closes its session and leaves; dead ones are skipped. */
void cluster_close(struct cluster *c);
/* Steps on all ranks at once, every byte verified. */
void cluster_run(struct cluster *c, uint32_t style, uint32_t first, uint32_t steps);
/* Start it, and collect it later. */
void cluster_post_run(struct cluster *c, uint32_t style, uint32_t first, uint32_t steps);
void cluster_collect_run(struct cluster *c);
/* A new agent in the place of rank r's: opens a session and takes the seat. */
void cluster_replace(struct cluster *c, uint32_t rank);
/* epd_rearm on every rank but `except` (-1: none). */
void cluster_rearm(struct cluster *c, int except);
/* One step by hand: dispatch, wait, combine, wait on all ranks. epoch of rank 0 before it. */
void cluster_step(struct cluster *c, uint32_t step);

#endif
