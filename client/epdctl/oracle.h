/* The naive reference of low-latency dispatch and combine: what every rank must see of one step,
 * written straight from the definition, with its own data layout (one array of floats a rank, one
 * list of rows a rank) and its own conversions. It shares nothing with the product but the meaning
 * of the numbers; keep it so. Slow on purpose. Also used by the conformance tests.
 *
 * R ranks, E experts, L = E / R, K top-k, H hidden; b[r] tokens of rank r. */
#ifndef EPDCTL_ORACLE_H
#define EPDCTL_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

enum oracle_dtype { ORACLE_BF16 = 1, ORACLE_FP16 = 2, ORACLE_FP32 = 3 };

struct oracle_shape {
    uint32_t ranks, experts, topk, hidden;
    enum oracle_dtype dtype;
    bool rank_major; /* else expert-major */
    uint64_t absent; /* bit r: rank r takes no part; selections of its experts count as -1 */
};

/* What rank r brings; borrowed, alive as long as the oracle. */
struct oracle_input {
    uint32_t b;
    const int64_t *ids;   /* [b, K], -1 dropped */
    const float *weights; /* [b, K] */
    const void *x;        /* [b, H] of the dtype */
};

/* What rank r must get; owned by the caller (oracle_output_free). */
struct oracle_output {
    uint32_t rows;
    uint32_t *src;     /* [rows, 2] source rank, token */
    uint32_t *expert;  /* [rows] global expert (expert-major), else 0 */
    uint32_t *index;   /* [rows] position inside its block: of the expert, or of the source */
    uint8_t *recv;     /* [rows, H] of the dtype */
    int32_t *counts;   /* [L, R] expert-major, [R] rank-major */
    int32_t *ids;      /* [rows, K] local ids, -1; rank-major */
    float *weights;    /* [rows, K], +0 where not local; rank-major */
    uint8_t *combined; /* [b, H] of the dtype */
};

/* The experts: y = expert(e, x), row by row. */
typedef void oracle_expert_fn(const struct oracle_shape *shape, uint32_t expert, const void *x,
                              void *y);
/* y = round_dtype(x * f), f = 1.0f + (float)e / (float)E: the experts of `epdctl replay`. */
oracle_expert_fn oracle_scale_expert;

/* Compute rank `rank`'s view of the step. False: out of memory (*out is empty). */
bool oracle_expect(const struct oracle_shape *shape, const struct oracle_input *in,
                   oracle_expert_fn *expert, uint32_t rank, struct oracle_output *out);
void oracle_output_free(struct oracle_output *out);

/* Rank-major: what rank `rank` must put into the combine for one received row: s = +0.0f;
 * s = fmaf(w[k], y[k], s) for its local k ascending, rounded once. local_ids, weights: [K]. */
bool oracle_local_sum(const struct oracle_shape *shape, oracle_expert_fn *expert, uint32_t rank,
                      const int32_t *local_ids, const float *weights, const void *x, void *y);

/* Element conversions: nearest even, denormals kept, NaN stored as 0x7fff (0x7fffffff in fp32). */
float oracle_load(enum oracle_dtype dtype, const void *array, uint64_t i);
void oracle_store(enum oracle_dtype dtype, void *array, uint64_t i, float value);
uint32_t oracle_bytes(enum oracle_dtype dtype);

#endif
