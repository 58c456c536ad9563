#include "client/epdctl/replay.h"

#include <stdlib.h>
#include <string.h>

#define GUARD 4096u      /* bytes between arrays */
#define GUARD_BYTE 0xa5u /* everything that nobody defined */

static struct replay_array place(struct replay_seat *seat, uint64_t bytes)
{
    const struct replay_array a = {.offset = seat->bytes, .bytes = bytes};
    seat->bytes += (bytes + GUARD + 255u) & ~(uint64_t)255u;
    return a;
}

static void lay_out(struct replay_seat *seat, const struct replay_plan *p)
{
    const uint64_t b = p->batch, k = p->trace.topk, local = p->trace.experts / p->ranks;
    const uint64_t row = (uint64_t)p->hidden * oracle_bytes(p->dtype), rb = p->ranks * b;
    const bool expert = p->layout == EPD_LAYOUT_EXPERT_MAJOR;
    const uint64_t rows = expert ? local * rb : rb;
    seat->bytes = GUARD;
    seat->x = place(seat, b * row);
    seat->ids = place(seat, b * k * 8);
    seat->weights = place(seat, b * k * 4);
    seat->recv = place(seat, rows * row);
    seat->counts = place(seat, (expert ? local : p->ranks) * 4);
    seat->src = place(seat, rows * 4);
    if (expert)
        seat->ranges = place(seat, p->trace.experts * 8ull);
    else {
        seat->recv_ids = place(seat, rows * k * 4);
        seat->recv_weights = place(seat, rows * k * 4);
    }
    seat->out = place(seat, b * row);
}

static struct epd_array array(const struct replay_seat *seat, struct replay_array a)
{
    return (struct epd_array){
        .buffer = a.bytes != 0 ? seat->buffer : NULL, .offset = a.offset, .bytes = a.bytes};
}

static enum epd_status bind_ops(struct replay_seat *seat, const struct replay_plan *p,
                                struct epd_error *err)
{
    const bool expert = p->layout == EPD_LAYOUT_EXPERT_MAJOR;
    struct epd_dispatch_config d = EPD_DISPATCH_CONFIG_INIT;
    struct epd_combine_config c = EPD_COMBINE_CONFIG_INIT;
    d.x = array(seat, seat->x);
    d.ids = array(seat, seat->ids);
    d.recv = array(seat, seat->recv);
    d.counts = array(seat, seat->counts);
    d.src = array(seat, seat->src);
    if (expert)
        d.ranges = array(seat, seat->ranges);
    else {
        d.weights = array(seat, seat->weights);
        d.recv_ids = array(seat, seat->recv_ids);
        d.recv_weights = array(seat, seat->recv_weights);
    }
    c.rows = array(seat, seat->recv);
    c.out = array(seat, seat->out);
    if (expert)
        c.weights = array(seat, seat->weights);
    enum epd_status status = epd_dispatch_bind(seat->lease, &d, &seat->dispatch, err);
    if (status == EPD_OK)
        status = epd_combine_bind(seat->lease, &c, &seat->combine, err);
    return status;
}

enum epd_status replay_seat_open(struct replay_seat *seat, struct epd *epd, uint64_t group,
                                 const struct replay_plan *plan, uint32_t rank,
                                 struct epd_error *err)
{
    memset(seat, 0, sizeof(*seat));
    seat->rank = rank;
    lay_out(seat, plan);
    enum epd_status status = epd_lease_acquire(epd, group, rank, NULL, &seat->lease, err);
    if (status == EPD_OK)
        status =
            epd_buffer_alloc(epd, epd_lease_device(seat->lease), seat->bytes, &seat->buffer, err);
    if (status != EPD_OK)
        return status;
    seat->base = epd_buffer_ptr(seat->buffer);
    return bind_ops(seat, plan, err);
}

void replay_seat_close(struct replay_seat *seat)
{
    (void)epd_op_unbind(seat->dispatch, NULL); /* the lease and the session take the rest along */
    (void)epd_op_unbind(seat->combine, NULL);
    epd_lease_release(seat->lease);
    (void)epd_buffer_free(seat->buffer, NULL);
    memset(seat, 0, sizeof(*seat));
}

void replay_seat_fill(struct replay_seat *seat, const struct replay_plan *plan,
                      const struct oracle_input *in)
{
    const uint64_t k = plan->trace.topk;
    const uint64_t row = (uint64_t)plan->hidden * oracle_bytes(plan->dtype);
    memset(seat->base, GUARD_BYTE, seat->bytes);
    if (in->b == 0)
        return;
    memcpy(seat->base + seat->x.offset, in->x, in->b * row);
    memcpy(seat->base + seat->ids.offset, in->ids, in->b * k * 8);
    memcpy(seat->base + seat->weights.offset, in->weights, in->b * k * 4);
}

uint32_t replay_received(const struct replay_seat *seat, const struct replay_plan *plan,
                         struct replay_row *rows)
{
    const bool expert = plan->layout == EPD_LAYOUT_EXPERT_MAJOR;
    const uint32_t local = plan->trace.experts / plan->ranks, blocks = expert ? local : 1;
    const uint64_t rb = (uint64_t)plan->ranks * plan->batch;
    const int32_t *ranges = (const void *)(seat->base + seat->ranges.offset);
    const int32_t *counts = (const void *)(seat->base + seat->counts.offset);
    const int32_t *src = (const void *)(seat->base + seat->src.offset);
    uint32_t n = 0;
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t r = 0; r < plan->ranks; r++) {
            const int32_t *range = ranges + ((uint64_t)block * plan->ranks + r) * 2;
            const uint64_t begin =
                expert ? block * rb + (uint64_t)range[0] : (uint64_t)r * plan->batch;
            const int32_t count = expert ? range[1] : counts[r];
            if (count < 0 || (uint32_t)count > plan->batch ||
                (expert && (range[0] < 0 || (uint64_t)range[0] + (uint64_t)count > rb)))
                return UINT32_MAX;
            for (int32_t i = 0; i < count; i++, n++)
                if (rows != NULL)
                    rows[n] = (struct replay_row){.at = begin + (uint64_t)i,
                                                  .source = r,
                                                  .token = (uint32_t)src[begin + (uint64_t)i]};
        }
    return n;
}

bool replay_seat_experts(struct replay_seat *seat, const struct replay_plan *plan)
{
    const struct oracle_shape shape = replay_shape(plan);
    const uint64_t row = (uint64_t)plan->hidden * oracle_bytes(plan->dtype);
    const uint32_t n = replay_received(seat, plan, NULL), k = plan->trace.topk;
    if (n == UINT32_MAX)
        return true; /* reported by verify */
    struct replay_row *rows = calloc(n + 1u, sizeof(*rows));
    if (rows == NULL)
        return false;
    (void)replay_received(seat, plan, rows);
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) {
        uint8_t *x = seat->base + seat->recv.offset + rows[i].at * row;
        if (shape.rank_major)
            ok = oracle_local_sum(
                &shape, oracle_scale_expert, seat->rank,
                (const int32_t *)(const void *)(seat->base + seat->recv_ids.offset) +
                    rows[i].at * k,
                (const float *)(const void *)(seat->base + seat->recv_weights.offset) +
                    rows[i].at * k,
                x, x);
        else
            oracle_scale_expert(&shape,
                                seat->rank * (shape.experts / shape.ranks) +
                                    (uint32_t)(rows[i].at / ((uint64_t)plan->ranks * plan->batch)),
                                x, x);
    }
    free(rows);
    return ok;
}
