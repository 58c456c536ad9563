#include "client/epdctl/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/epdctl/fail.h"
#include "client/epdctl/npy.h"

struct dump {
    const struct replay_plan *plan;
    uint32_t layer, step, rank;
    struct epd_error *err;
    struct replay_row *rows; /* owned; what was received, in order */
    uint32_t n;
};

static enum epd_status write_array(const struct dump *d, const char *name, const char *descr,
                                   const uint64_t shape[2], unsigned n_dims, const void *data)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/L%u-S%u-R%u-%s.npy", d->plan->dump, d->layer, d->step,
                   d->rank, name);
    return npy_write(path, descr, shape, n_dims, data, d->err);
}

static const char *element(const struct replay_plan *p)
{
    return p->dtype == ORACLE_FP32 ? "<f4" : p->dtype == ORACLE_FP16 ? "<f2" : "<u2";
}

static enum epd_status dump_counts(const struct dump *d, const struct replay_seat *seat)
{
    const struct replay_plan *p = d->plan;
    const uint64_t local = p->trace.experts / p->ranks;
    if (p->layout == EPD_LAYOUT_RANK_MAJOR)
        return write_array(d, "counts", "<i4", (const uint64_t[]){p->ranks, 0}, 1,
                           seat->base + seat->counts.offset);
    int32_t counts[EPD_MAX_EXPERTS];
    const int32_t *ranges = (const void *)(seat->base + seat->ranges.offset);
    for (uint64_t i = 0; i < local * p->ranks; i++)
        counts[i] = ranges[i * 2 + 1];
    return write_array(d, "counts", "<i4", (const uint64_t[]){local, p->ranks}, 2, counts);
}

/* Rows of `size` bytes at the received positions, gathered in order. */
static enum epd_status dump_rows(const struct dump *d, const char *name, const char *descr,
                                 const uint8_t *base, uint64_t size)
{
    const uint64_t shape[2] = {d->n, size / (uint64_t)(descr[2] - '0')};
    uint8_t *data = malloc(d->n * size + 1);
    if (data == NULL)
        return ctl_fail(d->err, EPD_ENOMEM, "no memory for %s", name);
    for (uint32_t i = 0; i < d->n; i++)
        memcpy(data + i * size, base + d->rows[i].at * size, size);
    const enum epd_status status = write_array(d, name, descr, shape, 2, data);
    free(data);
    return status;
}

static enum epd_status dump_src(const struct dump *d)
{
    int32_t *src = malloc((d->n * 2u + 1u) * sizeof(*src));
    if (src == NULL)
        return ctl_fail(d->err, EPD_ENOMEM, "no memory for src");
    for (uint32_t i = 0; i < d->n; i++) {
        src[i * 2] = (int32_t)d->rows[i].source;
        src[i * 2 + 1] = (int32_t)d->rows[i].token;
    }
    const enum epd_status status =
        write_array(d, "src", "<i4", (const uint64_t[]){d->n, 2}, 2, src);
    free(src);
    return status;
}

enum epd_status replay_dump_dispatch(const struct replay_seat *seat, const struct replay_plan *plan,
                                     uint32_t layer, uint32_t step, struct epd_error *err)
{
    struct dump d = {.plan = plan, .layer = layer, .step = step, .rank = seat->rank, .err = err};
    const uint64_t row = (uint64_t)plan->hidden * oracle_bytes(plan->dtype), k = plan->trace.topk;
    d.n = replay_received(seat, plan, NULL);
    if (d.n == UINT32_MAX)
        return ctl_fail(err, EPD_EINTERNAL, "rank %u: counts are out of range", seat->rank);
    d.rows = calloc(d.n + 1u, sizeof(*d.rows));
    if (d.rows == NULL)
        return ctl_fail(err, EPD_ENOMEM, "no memory for %u rows", d.n);
    (void)replay_received(seat, plan, d.rows);
    enum epd_status status = dump_counts(&d, seat);
    if (status == EPD_OK)
        status = dump_src(&d);
    if (status == EPD_OK)
        status = dump_rows(&d, "recv", element(plan), seat->base + seat->recv.offset, row);
    if (status == EPD_OK && plan->layout == EPD_LAYOUT_RANK_MAJOR)
        status = dump_rows(&d, "ids", "<i4", seat->base + seat->recv_ids.offset, k * 4);
    if (status == EPD_OK && plan->layout == EPD_LAYOUT_RANK_MAJOR)
        status = dump_rows(&d, "weights", "<f4", seat->base + seat->recv_weights.offset, k * 4);
    free(d.rows);
    return status;
}

enum epd_status replay_dump_combine(const struct replay_seat *seat, const struct replay_plan *plan,
                                    uint32_t layer, uint32_t step, uint32_t b,
                                    struct epd_error *err)
{
    const struct dump d = {
        .plan = plan, .layer = layer, .step = step, .rank = seat->rank, .err = err};
    return write_array(&d, "combined", element(plan), (const uint64_t[]){b, plan->hidden}, 2,
                       seat->base + seat->out.offset);
}
