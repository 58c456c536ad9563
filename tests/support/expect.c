#include "tests/support/expect.h"

#include <stdlib.h>
#include <string.h>

#include "client/epdctl/oracle.h"
#include "tests/support/check.h"

static struct oracle_shape oracle_of(const struct epd_shape *s)
{
    return (struct oracle_shape){
        .ranks = s->ranks,
        .experts = s->experts,
        .topk = s->topk,
        .hidden = s->hidden,
        .dtype = s->dtype == EPD_DTYPE_BF16   ? ORACLE_BF16
                 : s->dtype == EPD_DTYPE_FP16 ? ORACLE_FP16
                                              : ORACLE_FP32,
        .rank_major = s->layout == EPD_LAYOUT_RANK_MAJOR,
    };
}

static void *copy(const void *data, size_t n)
{
    void *p = need_memory(n);
    if (n)
        memcpy(p, data, n);
    return p;
}

static void take_counts(struct expect *e, const struct epd_shape *s, const struct oracle_output *o)
{
    const uint32_t local = epd_local_experts(s);
    if (s->layout == EPD_LAYOUT_RANK_MAJOR) {
        e->counts = copy(o->counts, s->ranks * sizeof(int32_t));
        return;
    }
    e->counts = need_memory(local * sizeof(int32_t));
    e->ranges = need_memory((size_t)s->experts * 2 * sizeof(int32_t));
    for (uint32_t i = 0; i < local; i++)
        for (uint32_t r = 0; r < s->ranks; r++) {
            const int32_t n = o->counts[i * s->ranks + r];
            e->ranges[(i * s->ranks + r) * 2] = e->counts[i];
            e->ranges[(i * s->ranks + r) * 2 + 1] = n;
            e->counts[i] += n;
        }
}

/* Where the oracle's rows lie in the receive area. */
static void take_rows(struct expect *e, const struct epd_shape *s, const struct oracle_output *o)
{
    const uint32_t local = epd_local_experts(s), B = s->max_tokens;
    e->rows = o->rows;
    e->at = need_memory(o->rows * sizeof(*e->at));
    e->src = need_memory(o->rows * sizeof(*e->src));
    for (uint32_t i = 0; i < o->rows; i++) {
        e->src[i] = (int32_t)o->src[i * 2 + 1];
        e->at[i] = s->layout == EPD_LAYOUT_RANK_MAJOR
                       ? o->src[i * 2] * B + o->index[i]
                       : o->expert[i] % local * s->ranks * B + o->index[i];
    }
    e->recv = copy(o->recv, (size_t)o->rows * epd_row_bytes(s));
    if (s->layout == EPD_LAYOUT_RANK_MAJOR) {
        e->ids = copy(o->ids, (size_t)o->rows * s->topk * sizeof(int32_t));
        e->weights = copy(o->weights, (size_t)o->rows * s->topk * sizeof(float));
    }
}

void expect_init(struct expect *e, const struct workload *w, const struct batch *batch,
                 uint32_t rank)
{
    const struct epd_shape *s = &w->shape;
    const struct oracle_shape shape = oracle_of(s);
    struct oracle_input in[EPD_MAX_RANKS];
    int64_t *ids[EPD_MAX_RANKS];
    struct oracle_output o;
    *e = (struct expect){0};
    for (uint32_t r = 0; r < s->ranks; r++) {
        const size_t n = (size_t)batch->b[r] * s->topk;
        ids[r] = need_memory(n * sizeof(int64_t));
        for (size_t i = 0; i < n; i++)
            ids[r][i] = batch->ids[r][i];
        in[r] = (struct oracle_input){batch->b[r], ids[r], batch->weights[r], batch->x[r]};
    }
    check_true(oracle_expect(&shape, in, oracle_scale_expert, rank, &o), "oracle: out of memory");
    take_counts(e, s, &o);
    take_rows(e, s, &o);
    e->out = copy(o.combined, (size_t)batch->b[rank] * epd_row_bytes(s));
    oracle_output_free(&o);
    for (uint32_t r = 0; r < s->ranks; r++)
        free(ids[r]);
}

void expect_fini(struct expect *e)
{
    free(e->at);
    free(e->src);
    free(e->recv);
    free(e->counts);
    free(e->ranges);
    free(e->ids);
    free(e->weights);
    free(e->out);
    *e = (struct expect){0};
}

void expect_expert(const struct epd_shape *s, uint32_t expert, const void *x, void *y)
{
    const struct oracle_shape shape = oracle_of(s);
    oracle_scale_expert(&shape, expert, x, y);
}

void expect_local_sum(const struct epd_shape *s, uint32_t rank, const int32_t *local_ids,
                      const float *weights, const void *x, void *y)
{
    const struct oracle_shape shape = oracle_of(s);
    check_true(oracle_local_sum(&shape, oracle_scale_expert, rank, local_ids, weights, x, y),
               "oracle: out of memory");
}
