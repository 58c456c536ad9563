#include "client/epdctl/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- elements ---- */

struct format {
    int mantissa; /* stored bits */
    int min_exp;  /* of normal numbers */
    int max_exp;
};
static const struct format g_bf16 = {7, -126, 127}, g_fp16 = {10, -14, 15};

uint32_t oracle_bytes(enum oracle_dtype dtype)
{
    return dtype == ORACLE_FP32 ? 4 : 2;
}

static float decode(const struct format *f, uint16_t bits)
{
    const int exp_field = (bits & 0x7fff) >> f->mantissa;
    const int fraction = bits & ((1 << f->mantissa) - 1);
    const int exp_max = f->max_exp - f->min_exp + 2;
    double value;
    if (exp_field == exp_max)
        value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exp_field == 0)
        value = ldexp(fraction, f->min_exp - f->mantissa);
    else
        value = ldexp(fraction + (1 << f->mantissa), exp_field - 1 + f->min_exp - f->mantissa);
    return (float)((bits & 0x8000) != 0 ? -value : value);
}

static uint16_t encode(const struct format *f, float value)
{
    if (isnan(value))
        return 0x7fff;
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const int inf = (f->max_exp - f->min_exp + 2) << f->mantissa;
    const double a = fabs((double)value);
    if (isinf(value))
        return (uint16_t)(sign | inf);
    int exponent = a > 0 ? ilogb(a) : f->min_exp;
    if (exponent < f->min_exp)
        exponent = f->min_exp;
    /* Units of the last place; nearbyint rounds to nearest even. A carry moves into the exponent
     * field by itself. */
    const int units = (int)nearbyint(ldexp(a, f->mantissa - exponent));
    const int bits = units + ((exponent - f->min_exp) << f->mantissa);
    return (uint16_t)(sign | (bits < inf ? bits : inf));
}

float oracle_load(enum oracle_dtype dtype, const void *array, uint64_t i)
{
    if (dtype == ORACLE_FP32) {
        float value;
        memcpy(&value, (const char *)array + i * 4, 4);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, (const char *)array + i * 2, 2);
    return decode(dtype == ORACLE_BF16 ? &g_bf16 : &g_fp16, bits);
}

void oracle_store(enum oracle_dtype dtype, void *array, uint64_t i, float value)
{
    if (dtype == ORACLE_FP32) {
        const uint32_t nan = 0x7fffffff;
        memcpy((char *)array + i * 4, isnan(value) ? (const void *)&nan : (const void *)&value, 4);
        return;
    }
    const uint16_t bits = encode(dtype == ORACLE_BF16 ? &g_bf16 : &g_fp16, value);
    memcpy((char *)array + i * 2, &bits, 2);
}

void oracle_scale_expert(const struct oracle_shape *shape, uint32_t expert, const void *x, void *y)
{
    const float f = 1.0f + (float)expert / (float)shape->experts;
    for (uint32_t h = 0; h < shape->hidden; h++)
        oracle_store(shape->dtype, y, h, oracle_load(shape->dtype, x, h) * f);
}

/* ---- routing ---- */

/* The rank of the k-th selection of a token, -1 when it counts as dropped. */
static int rank_of(const struct oracle_shape *s, const struct oracle_input *in, uint32_t token,
                   uint32_t k)
{
    const int64_t id = in->ids[(uint64_t)token * s->topk + k];
    if (id < 0)
        return -1;
    const uint32_t rank = (uint32_t)id / (s->experts / s->ranks);
    return (s->absent >> rank & 1) != 0 ? -1 : (int)rank;
}

static bool chose_expert(const struct oracle_shape *s, const struct oracle_input *in,
                         uint32_t token, uint32_t expert)
{
    for (uint32_t k = 0; k < s->topk; k++)
        if (rank_of(s, in, token, k) >= 0 && in->ids[(uint64_t)token * s->topk + k] == expert)
            return true;
    return false;
}

static bool reaches(const struct oracle_shape *s, const struct oracle_input *in, uint32_t token,
                    uint32_t rank)
{
    for (uint32_t k = 0; k < s->topk; k++)
        if (rank_of(s, in, token, k) == (int)rank)
            return true;
    return false;
}

static bool present(const struct oracle_shape *s, uint32_t rank)
{
    return (s->absent >> rank & 1) == 0;
}

/* ---- what arrives ---- */

static void add_row(const struct oracle_shape *s, const struct oracle_input *in,
                    struct oracle_output *out, uint32_t source, uint32_t token)
{
    const uint64_t bytes = (uint64_t)s->hidden * oracle_bytes(s->dtype);
    out->src[out->rows * 2] = source;
    out->src[out->rows * 2 + 1] = token;
    memcpy(out->recv + out->rows * bytes, (const char *)in[source].x + token * bytes, bytes);
    out->rows++;
}

static void receive_expert_major(const struct oracle_shape *s, const struct oracle_input *in,
                                 uint32_t rank, struct oracle_output *out)
{
    const uint32_t local = s->experts / s->ranks;
    for (uint32_t le = 0; le < local; le++) {
        uint32_t index = 0;
        for (uint32_t source = 0; source < s->ranks; source++)
            for (uint32_t t = 0; present(s, source) && t < in[source].b; t++) {
                if (!chose_expert(s, &in[source], t, rank * local + le))
                    continue;
                out->expert[out->rows] = rank * local + le;
                out->index[out->rows] = index++;
                out->counts[le * s->ranks + source]++;
                add_row(s, in, out, source, t);
            }
    }
}

static void receive_rank_major(const struct oracle_shape *s, const struct oracle_input *in,
                               uint32_t rank, struct oracle_output *out)
{
    const uint32_t local = s->experts / s->ranks;
    for (uint32_t source = 0; source < s->ranks; source++)
        for (uint32_t t = 0; present(s, source) && t < in[source].b; t++) {
            if (!reaches(s, &in[source], t, rank))
                continue;
            for (uint32_t k = 0; k < s->topk; k++) {
                const uint64_t from = (uint64_t)t * s->topk + k;
                const uint64_t to = (uint64_t)out->rows * s->topk + k;
                const bool here = rank_of(s, &in[source], t, k) == (int)rank;
                out->ids[to] = here ? (int32_t)(in[source].ids[from] - rank * local) : -1;
                out->weights[to] = here ? in[source].weights[from] : 0.0f;
            }
            out->index[out->rows] = (uint32_t)out->counts[source]++;
            add_row(s, in, out, source, t);
        }
}

/* ---- what comes back ---- */

bool oracle_local_sum(const struct oracle_shape *s, oracle_expert_fn *expert, uint32_t rank,
                      const int32_t *local_ids, const float *weights, const void *x, void *y)
{
    float *sum = calloc(s->hidden, sizeof(*sum));
    void *row = calloc(s->hidden, oracle_bytes(s->dtype));
    if (sum != NULL && row != NULL) {
        for (uint32_t k = 0; k < s->topk; k++) {
            if (local_ids[k] < 0)
                continue;
            expert(s, rank * (s->experts / s->ranks) + (uint32_t)local_ids[k], x, row);
            for (uint32_t h = 0; h < s->hidden; h++)
                sum[h] = fmaf(weights[k], oracle_load(s->dtype, row, h), sum[h]);
        }
        for (uint32_t h = 0; h < s->hidden; h++)
            oracle_store(s->dtype, y, h, sum[h]);
    }
    const bool ok = sum != NULL && row != NULL;
    free(sum);
    free(row);
    return ok;
}

struct scratch {
    float *acc;
    void *row;
    int32_t *local;
};

static void combine_expert_major(const struct oracle_shape *s, const struct oracle_input *in,
                                 oracle_expert_fn *expert, uint32_t token, struct scratch *m)
{
    const char *x = (const char *)in->x + (uint64_t)token * s->hidden * oracle_bytes(s->dtype);
    for (uint32_t k = 0; k < s->topk; k++) {
        const uint64_t at = (uint64_t)token * s->topk + k;
        if (rank_of(s, in, token, k) < 0)
            continue;
        expert(s, (uint32_t)in->ids[at], x, m->row);
        for (uint32_t h = 0; h < s->hidden; h++)
            m->acc[h] = fmaf(in->weights[at], oracle_load(s->dtype, m->row, h), m->acc[h]);
    }
}

static bool combine_rank_major(const struct oracle_shape *s, const struct oracle_input *in,
                               oracle_expert_fn *expert, uint32_t token, struct scratch *m)
{
    const char *x = (const char *)in->x + (uint64_t)token * s->hidden * oracle_bytes(s->dtype);
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        if (!reaches(s, in, token, rank))
            continue;
        for (uint32_t k = 0; k < s->topk; k++)
            m->local[k] = rank_of(s, in, token, k) == (int)rank
                              ? (int32_t)(in->ids[(uint64_t)token * s->topk + k] -
                                          rank * (s->experts / s->ranks))
                              : -1;
        if (!oracle_local_sum(s, expert, rank, m->local, in->weights + (uint64_t)token * s->topk, x,
                              m->row))
            return false;
        for (uint32_t h = 0; h < s->hidden; h++)
            m->acc[h] = m->acc[h] + oracle_load(s->dtype, m->row, h);
    }
    return true;
}

static bool combine(const struct oracle_shape *s, const struct oracle_input *in,
                    oracle_expert_fn *expert, uint8_t *combined)
{
    struct scratch m = {calloc(s->hidden, sizeof(float)), calloc(s->hidden, oracle_bytes(s->dtype)),
                        calloc(s->topk, sizeof(int32_t))};
    bool ok = m.acc != NULL && m.row != NULL && m.local != NULL;
    for (uint32_t t = 0; ok && t < in->b; t++) {
        for (uint32_t h = 0; h < s->hidden; h++)
            m.acc[h] = 0.0f;
        if (s->rank_major)
            ok = combine_rank_major(s, in, expert, t, &m);
        else
            combine_expert_major(s, in, expert, t, &m);
        for (uint32_t h = 0; ok && h < s->hidden; h++)
            oracle_store(s->dtype, combined, (uint64_t)t * s->hidden + h, m.acc[h]);
    }
    free(m.acc);
    free(m.row);
    free(m.local);
    return ok;
}

/* ---- one rank's view ---- */

static uint32_t count_rows(const struct oracle_shape *s, const struct oracle_input *in,
                           uint32_t rank)
{
    const uint32_t local = s->experts / s->ranks;
    uint32_t rows = 0;
    for (uint32_t source = 0; source < s->ranks; source++)
        for (uint32_t t = 0; present(s, source) && t < in[source].b; t++) {
            if (s->rank_major)
                rows += reaches(s, &in[source], t, rank);
            for (uint32_t le = 0; !s->rank_major && le < local; le++)
                rows += chose_expert(s, &in[source], t, rank * local + le);
        }
    return rows;
}

bool oracle_expect(const struct oracle_shape *s, const struct oracle_input *in,
                   oracle_expert_fn *expert, uint32_t rank, struct oracle_output *out)
{
    const uint64_t row = (uint64_t)s->hidden * oracle_bytes(s->dtype);
    const uint32_t rows = present(s, rank) ? count_rows(s, in, rank) : 0;
    memset(out, 0, sizeof(*out));
    out->src = calloc(rows * 2 + 1, sizeof(*out->src)); /* + 1: never a request for 0 bytes */
    out->expert = calloc(rows + 1, sizeof(*out->expert));
    out->index = calloc(rows + 1, sizeof(*out->index));
    out->recv = calloc(rows + 1, row);
    out->counts = calloc(s->rank_major ? s->ranks : s->experts, sizeof(*out->counts));
    out->ids = calloc((uint64_t)rows * s->topk + 1, sizeof(*out->ids));
    out->weights = calloc((uint64_t)rows * s->topk + 1, sizeof(*out->weights));
    out->combined = calloc(in[rank].b + 1, row);
    bool ok = out->src && out->expert && out->index && out->recv && out->counts && out->ids &&
              out->weights && out->combined;
    if (ok && present(s, rank)) {
        if (s->rank_major)
            receive_rank_major(s, in, rank, out);
        else
            receive_expert_major(s, in, rank, out);
        ok = combine(s, &in[rank], expert, out->combined);
    }
    if (!ok)
        oracle_output_free(out);
    return ok;
}

void oracle_output_free(struct oracle_output *out)
{
    free(out->src);
    free(out->expert);
    free(out->index);
    free(out->recv);
    free(out->counts);
    free(out->ids);
    free(out->weights);
    free(out->combined);
    memset(out, 0, sizeof(*out));
}
