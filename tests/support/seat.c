#include "tests/support/seat.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/expect.h"
#include "tests/support/seat_internal.h"

struct seat *seat_open(struct epd *epd, const struct seat_config *config, struct epd_error *err)
{
    struct seat *s = need_memory(sizeof(*s));
    s->c = *config;
    s->epd = epd;
    s->in_fd = -1;
    if (s->c.sets == 0)
        s->c.sets = 1;
    struct epd_lease_options o = EPD_LEASE_OPTIONS_INIT;
    o.ring_depth = s->c.ring_depth;
    o.takeover = s->c.takeover;
    o.key = s->c.has_key ? s->c.key : NULL;
    enum epd_status status = epd_lease_acquire(epd, s->c.group, s->c.rank, &o, &s->lease, err);
    if (status == EPD_OK)
        status = seat_memory_open(s, err);
    if (status == EPD_OK)
        return s;
    seat_close(s);
    return NULL;
}

void seat_close(struct seat *s)
{
    if (!s)
        return;
    seat_memory_close(s, true);
    epd_lease_release(s->lease);
    free(s);
}

void seat_forget(struct seat *s)
{
    if (!s)
        return;
    seat_memory_close(s, false);
    free(s);
}

struct seat_turn *seat_turn(struct seat *s, uint64_t epoch)
{
    return &s->turn[epoch % SEAT_TURNS];
}

/* ---- inputs ----------------------------------------------------------------------------- */

static void write_id(struct seat *s, size_t row, size_t k, int64_t wide)
{
    const uint32_t bytes = epd_ids_bytes(s->c.w.ids_type);
    const int32_t narrow = (int32_t)wide;
    const size_t at = s->ids + row * s->ids_stride + k * bytes;
    image_write(&s->in, at, bytes == 8 ? (const void *)&wide : (const void *)&narrow, bytes);
}

static void write_ids(struct seat *s, size_t row, const int32_t *ids, uint32_t b)
{
    const uint32_t k = s->c.w.shape.topk;
    for (uint32_t t = 0; t < b; t++)
        for (uint32_t i = 0; i < k; i++)
            write_id(s, row + t, i, ids[(size_t)t * k + i]);
}

static void write_rows(struct image *image, size_t at, size_t stride, const void *data, size_t row,
                       uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        image_write(image, at + t * stride, (const uint8_t *)data + t * row, row);
}

static void write_inputs(struct seat *s, const struct seat_turn *turn,
                         const struct seat_twist *twist)
{
    const struct workload *w = &s->c.w;
    const size_t k = w->shape.topk, row = epd_row_bytes(&w->shape), b = turn->b;
    const size_t first = (turn->epoch % SEAT_TURNS) * w->shape.max_tokens;
    int32_t *ids = need_memory(b * k * sizeof(*ids));
    float *weights = need_memory(b * k * sizeof(*weights));
    uint8_t *x = need_memory(b * row);
    workload_ids(w, turn->step, s->c.rank, ids);
    workload_weights(w, turn->step, s->c.rank, weights);
    workload_x(w, turn->step, s->c.rank, x);
    write_ids(s, first, ids, turn->b);
    if (twist && twist->bad_id_set && twist->bad_at < b * k)
        write_id(s, first + twist->bad_at / k, twist->bad_at % k, twist->bad_id);
    write_rows(&s->in, s->weights + first * s->weights_stride, s->weights_stride, weights,
               k * sizeof(float), turn->b);
    write_rows(&s->in, s->x + first * s->x_stride, s->x_stride, x, row, turn->b);
    free(ids);
    free(weights);
    free(x);
}

/* ---- submit ----------------------------------------------------------------------------- */

static void fill_submit(struct seat *s, struct epd_submit *submit, const struct seat_turn *turn,
                        uint32_t kind)
{
    const size_t at = s->control + seat_control_at(turn->epoch, kind);
    submit->b = turn->b;
    submit->tag = workload_tag(&s->c.w, turn->step);
    submit->in_row = (turn->epoch % SEAT_TURNS) * s->c.w.shape.max_tokens;
    submit->set = turn->set;
    if (s->c.flags & SEAT_B_INDIRECT) {
        submit->flags |= EPD_SUBMIT_B_INDIRECT;
        submit->b_offset = seat_control_at(turn->epoch, kind);
        submit->b = 0;
        image_write(&s->in, at, &turn->b, sizeof(turn->b));
    }
    if (s->c.flags & SEAT_NOTIFY) {
        const uint64_t zero = 0;
        submit->flags |= EPD_SUBMIT_NOTIFY;
        submit->notify_offset = seat_control_at(turn->epoch, kind) + 8;
        image_write(&s->in, at + 8, &zero, sizeof(zero));
    }
}

enum epd_status seat_dispatch(struct seat *s, uint32_t step, const struct seat_twist *twist,
                              struct epd_ticket *ticket)
{
    const uint64_t epoch = epd_lease_epoch(s->lease);
    struct epd_submit submit = EPD_SUBMIT_INIT;
    struct seat_turn *turn = seat_turn(s, epoch);
    *turn = (struct seat_turn){
        .epoch = epoch,
        .step = step,
        .b = workload_b(&s->c.w, step, s->c.rank),
        .set = (uint32_t)(epoch % s->c.sets),
        .released = s->combines,
        .used = true,
    };
    write_inputs(s, turn, twist);
    fill_submit(s, &submit, turn, 0);
    if (twist)
        submit.tag ^= twist->tag_xor;
    return epd_dispatch(s->dispatch, &submit, ticket);
}

enum epd_status seat_combine(struct seat *s, uint64_t epoch, const struct seat_twist *twist,
                             struct epd_ticket *ticket)
{
    struct epd_submit submit = EPD_SUBMIT_INIT;
    struct seat_turn *turn = seat_turn(s, epoch);
    fill_submit(s, &submit, turn, 1);
    submit.epoch = epoch;
    submit.out_row = submit.in_row;
    if (twist)
        submit.tag ^= twist->tag_xor;
    enum epd_status status = epd_combine(s->combine, &submit, ticket);
    if (status == EPD_OK)
        s->combines = epoch + 1;
    return status;
}

/* ---- experts ---------------------------------------------------------------------------- */

static void expert_row(struct seat *s, uint64_t row, uint32_t expert, void *y)
{
    const size_t bytes = epd_row_bytes(&s->c.w.shape);
    expect_expert(&s->c.w.shape, expert, s->out.mem + s->recv + row * s->recv_stride, y);
    image_write(&s->out, s->rows + row * s->rows_stride, y, bytes);
}

static void sum_row(struct seat *s, uint64_t row, void *y)
{
    const struct epd_shape *p = &s->c.w.shape;
    const int32_t *ids = (const int32_t *)(const void *)(s->out.mem + s->recv_ids);
    const float *weights = (const float *)(const void *)(s->out.mem + s->recv_weights);
    expect_local_sum(p, s->c.rank, ids + row * p->topk, weights + row * p->topk,
                     s->out.mem + s->recv + row * s->recv_stride, y);
    image_write(&s->out, s->rows + row * s->rows_stride, y, epd_row_bytes(p));
}

void seat_experts(struct seat *s, uint64_t epoch)
{
    const struct epd_shape *p = &s->c.w.shape;
    const struct seat_turn *turn = seat_turn(s, epoch);
    const uint32_t n = epd_counts_len(p);
    const uint64_t rows = epd_recv_rows(p), base = turn->set * rows;
    const int32_t *counts =
        (const int32_t *)(const void *)(s->out.mem + s->counts) + (size_t)turn->set * n;
    uint8_t *y = need_memory(epd_row_bytes(p));
    for (uint32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < counts[i] && (uint64_t)j < rows / n; j++) {
            uint64_t row = base + i * (rows / n) + (uint64_t)j;
            if (p->layout == EPD_LAYOUT_EXPERT_MAJOR)
                expert_row(s, row, s->c.rank * n + i, y);
            else
                sum_row(s, row, y);
        }
    free(y);
}
