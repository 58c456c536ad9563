#include "tests/support/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/rng.h"

/* Streams of one seed. */
enum { STREAM_B = 1, STREAM_IDS, STREAM_WEIGHTS, STREAM_X, STREAM_TAG };

static uint64_t stream(uint32_t kind, uint32_t rank)
{
    return (uint64_t)kind << 32 | rank;
}

const char *routing_name(enum routing routing)
{
    static const char *const names[ROUTE_KINDS] = {
        [ROUTE_RANDOM] = "random",
        [ROUTE_EXPERT_0] = "expert0",
        [ROUTE_OWN] = "own",
        [ROUTE_ONE_SENDS] = "one-sends",
        [ROUTE_SOME_NONE] = "some-none",
        [ROUTE_ROW_NONE] = "row-none",
        [ROUTE_DUPLICATES] = "dup",
        [ROUTE_ZIPF] = "zipf",
        [ROUTE_K_HOT] = "k-hot",
    };
    return routing < ROUTE_KINDS ? names[routing] : "?";
}

void *need_memory(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    check_true(p != NULL, "out of memory: %zu bytes", n);
    return p;
}

uint32_t workload_b(const struct workload *w, uint32_t step, uint32_t rank)
{
    const uint32_t B = w->shape.max_tokens;
    struct rng r = rng_make(w->seed, step, stream(STREAM_B, rank));
    if (w->routing == ROUTE_ONE_SENDS && rank != 0)
        return 0;
    switch (w->b_pattern) {
    case B_FULL:
        return B;
    case B_ZERO:
        return 0;
    case B_ONE:
        return 1;
    case B_LESS_ONE:
        return B - 1;
    case B_RANDOM:
        return rng_below(&r, B + 1);
    default: {
        const uint32_t mixed[4] = {B, 0, B - 1, 1};
        return mixed[(rank + step) % 4u];
    }
    }
}

static int32_t zipf(struct rng *r, uint32_t experts)
{
    /* Inverse of ~log: P(e <= n) = ln(n + 1) / ln(E + 1). */
    double e = exp((double)rng_unit(r) * log((double)experts + 1.0)) - 1.0;
    uint32_t id = (uint32_t)e;
    return (int32_t)(id < experts ? id : experts - 1);
}

/* K distinct experts out of [first, first + n), or repetitions when n < K. */
static void pick_distinct(struct rng *r, int32_t *ids, uint32_t k, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < k; i++) {
        int32_t id;
        uint32_t j;
        do {
            id = (int32_t)(first + rng_below(r, n));
            for (j = 0; j < i && j < n; j++)
                if (ids[j] == id)
                    break;
        } while (i < n && j < i);
        ids[i] = id;
    }
}

static void row_ids(const struct workload *w, struct rng *r, uint32_t token, uint32_t rank,
                    int32_t *ids)
{
    const uint32_t k = w->shape.topk, experts = w->shape.experts;
    const uint32_t local = epd_local_experts(&w->shape);
    switch (w->routing) {
    case ROUTE_EXPERT_0:
        memset(ids, 0, k * sizeof(*ids));
        return;
    case ROUTE_OWN:
        pick_distinct(r, ids, k, rank * local, local);
        return;
    case ROUTE_ONE_SENDS:
        for (uint32_t i = 0; i < k; i++)
            ids[i] = (int32_t)(i % 2 < experts ? i % 2 : 0);
        return;
    case ROUTE_DUPLICATES:
        for (uint32_t i = 0; i < k; i++)
            ids[i] = (int32_t)rng_below(r, experts < 3 ? experts : 3) - (rng_below(r, 8) == 0);
        return;
    case ROUTE_ZIPF:
        for (uint32_t i = 0; i < k; i++)
            ids[i] = zipf(r, experts);
        return;
    case ROUTE_K_HOT:
        for (uint32_t i = 0; i < k; i++)
            ids[i] = (int32_t)((w->seed + (uint64_t)i * 7u) % experts);
        return;
    default:
        break;
    }
    pick_distinct(r, ids, k, 0, experts);
    for (uint32_t i = 0; i < k; i++)
        if ((w->routing == ROUTE_SOME_NONE && rng_below(r, 3) == 0) ||
            (w->routing == ROUTE_ROW_NONE && token % 2 == 1))
            ids[i] = -1;
}

void workload_ids(const struct workload *w, uint32_t step, uint32_t rank, int32_t *ids)
{
    uint32_t b = workload_b(w, step, rank);
    struct rng r = rng_make(w->seed, step, stream(STREAM_IDS, rank));
    for (uint32_t t = 0; t < b; t++)
        row_ids(w, &r, t, rank, ids + (size_t)t * w->shape.topk);
}

void workload_weights(const struct workload *w, uint32_t step, uint32_t rank, float *weights)
{
    size_t n = (size_t)workload_b(w, step, rank) * w->shape.topk;
    struct rng r = rng_make(w->seed, step, stream(STREAM_WEIGHTS, rank));
    for (size_t i = 0; i < n; i++)
        weights[i] = rng_unit(&r) + 1e-4f;
}

/* Exponents within +-6 of 1, any mantissa, any sign: sums round, nothing overflows. */
static uint32_t normal_bits(uint32_t dtype, uint64_t v)
{
    uint32_t sign = (uint32_t)(v >> 63), exponent = (uint32_t)(v >> 40) % 13u;
    switch (dtype) {
    case EPD_DTYPE_BF16:
        return sign << 15 | (121u + exponent) << 7 | (uint32_t)(v & 0x7fu);
    case EPD_DTYPE_FP16:
        return sign << 15 | (9u + exponent) << 10 | (uint32_t)(v & 0x3ffu);
    default:
        return sign << 31 | (121u + exponent) << 23 | (uint32_t)(v & 0x7fffffu);
    }
}

static uint32_t special_bits(uint32_t dtype, uint64_t v)
{
    static const uint32_t bf16[8] = {0x7fc1, 0xff85, 0x7f80, 0xff80,
                                     0x0001, 0x807f, 0x8000, 0x7f7f};
    static const uint32_t fp16[8] = {0x7e01, 0xfd55, 0x7c00, 0xfc00,
                                     0x0001, 0x83ff, 0x8000, 0x7bff};
    static const uint32_t fp32[8] = {0x7fc00001, 0xff800123, 0x7f800000, 0xff800000,
                                     0x00000001, 0x807fffff, 0x80000000, 0x7f7fffff};
    uint32_t i = (uint32_t)(v >> 8) % 8u;
    return dtype == EPD_DTYPE_BF16 ? bf16[i] : dtype == EPD_DTYPE_FP16 ? fp16[i] : fp32[i];
}

void workload_x(const struct workload *w, uint32_t step, uint32_t rank, void *x)
{
    const uint32_t dtype = w->shape.dtype;
    size_t n = (size_t)workload_b(w, step, rank) * w->shape.hidden;
    struct rng r = rng_make(w->seed, step, stream(STREAM_X, rank));
    for (size_t i = 0; i < n; i++) {
        uint64_t v = rng_next(&r);
        bool special = w->values == VALUES_SPECIAL && (v & 0xfu) < 5u;
        uint32_t bits = special ? special_bits(dtype, v >> 4) : normal_bits(dtype, v);
        if (dtype == EPD_DTYPE_FP32)
            ((uint32_t *)x)[i] = bits;
        else
            ((uint16_t *)x)[i] = (uint16_t)bits;
    }
}

uint32_t workload_tag(const struct workload *w, uint32_t step)
{
    return (uint32_t)rng_hash(w->seed, step, STREAM_TAG, 0);
}

void batch_init(struct batch *batch, const struct workload *w, uint32_t step)
{
    *batch = (struct batch){.ranks = w->shape.ranks};
    for (uint32_t r = 0; r < batch->ranks; r++) {
        size_t b = batch->b[r] = workload_b(w, step, r);
        batch->ids[r] = need_memory(b * w->shape.topk * sizeof(int32_t));
        batch->weights[r] = need_memory(b * w->shape.topk * sizeof(float));
        batch->x[r] = need_memory(b * epd_row_bytes(&w->shape));
        workload_ids(w, step, r, batch->ids[r]);
        workload_weights(w, step, r, batch->weights[r]);
        workload_x(w, step, r, batch->x[r]);
    }
}

void batch_fini(struct batch *batch)
{
    for (uint32_t r = 0; r < batch->ranks; r++) {
        free(batch->ids[r]);
        free(batch->weights[r]);
        free(batch->x[r]);
    }
    *batch = (struct batch){0};
}
