/* What the ranks of a group feed into each step, as pure functions of (workload, step, rank): every
 * process of a test can compute every rank's input, so nothing is passed around. A step is one
 * dispatch and its combine; its number is the test's, not the protocol's epoch. */
#ifndef EPD_TESTS_WORKLOAD_H
#define EPD_TESTS_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "proto/layout.h"

enum routing {
    ROUTE_RANDOM = 0, /* distinct experts per token, uniform */
    ROUTE_EXPERT_0,   /* every selection is expert 0 (so duplicates when K > 1) */
    ROUTE_OWN,        /* only experts of the own rank */
    ROUTE_ONE_SENDS,  /* only rank 0 has tokens, only experts 0 and 1 are used */
    ROUTE_SOME_NONE,  /* random, about a third -1 */
    ROUTE_ROW_NONE,   /* random, every other token all -1 */
    ROUTE_DUPLICATES, /* random with repetition from few experts, some -1 */
    ROUTE_ZIPF,       /* skewed: expert e with probability ~ 1 / (e + 1) */
    ROUTE_K_HOT,      /* every token of every rank selects the same K experts */
    ROUTE_KINDS
};
const char *routing_name(enum routing routing);

enum b_pattern {
    B_MIXED = 0, /* from {0, 1, B-1, B} by (step, rank), different per rank */
    B_FULL,
    B_ZERO, /* nobody has tokens */
    B_ONE,
    B_LESS_ONE, /* B - 1 */
    B_RANDOM,   /* 0..B */
};

enum values {
    VALUES_NORMAL = 0, /* finite, many magnitudes, no denormals */
    VALUES_SPECIAL,    /* also NaN with payloads, infinities, denormals, -0 */
};

struct workload {
    struct epd_shape shape;
    uint64_t seed;
    uint32_t ids_type; /* enum epd_ids_type */
    uint32_t routing, b_pattern, values;
};

/* Tokens of `rank` in `step`. */
uint32_t workload_b(const struct workload *w, uint32_t step, uint32_t rank);
/* [b, K] global expert ids. */
void workload_ids(const struct workload *w, uint32_t step, uint32_t rank, int32_t *ids);
/* [b, K] */
void workload_weights(const struct workload *w, uint32_t step, uint32_t rank, float *weights);
/* [b, H] raw bits of the dtype, dense. */
void workload_x(const struct workload *w, uint32_t step, uint32_t rank, void *x);
/* The user tag of a step. */
uint32_t workload_tag(const struct workload *w, uint32_t step);

/* All ranks' inputs of one step. */
struct batch {
    uint32_t ranks;
    uint32_t b[EPD_MAX_RANKS];
    int32_t *ids[EPD_MAX_RANKS];   /* owned */
    float *weights[EPD_MAX_RANKS]; /* owned */
    uint8_t *x[EPD_MAX_RANKS];     /* owned; dense rows */
};
void batch_init(struct batch *batch, const struct workload *w, uint32_t step);
void batch_fini(struct batch *batch);

/* calloc that ends the process without memory; n may be 0. */
void *need_memory(size_t n);

#endif
