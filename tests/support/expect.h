/* What one rank must see of one step, from the naive oracle (client/epdctl/oracle.h). */
#ifndef EPD_TESTS_EXPECT_H
#define EPD_TESTS_EXPECT_H

#include <stdint.h>

#include "tests/support/workload.h"

struct expect {
    uint32_t rows;   /* received */
    uint32_t *at;    /* [rows] row of the receive area */
    int32_t *src;    /* [rows] token of the source rank */
    uint8_t *recv;   /* [rows, H] */
    int32_t *counts; /* [L] or [R] */
    int32_t *ranges; /* [L, R, 2]; expert-major */
    int32_t *ids;    /* [rows, K] local ids; rank-major */
    float *weights;  /* [rows, K]; rank-major */
    uint8_t *out;    /* [b, H] combined */
};
void expect_init(struct expect *e, const struct workload *w, const struct batch *batch,
                 uint32_t rank);
void expect_fini(struct expect *e);

/* Expert-major: y = expert(x) for one row. */
void expect_expert(const struct epd_shape *s, uint32_t expert, const void *x, void *y);
/* Rank-major: the sum over local experts of one received row. */
void expect_local_sum(const struct epd_shape *s, uint32_t rank, const int32_t *local_ids,
                      const float *weights, const void *x, void *y);

#endif
