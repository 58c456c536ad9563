#include "daemon/engine/group_internal.h"

#include <string.h>

/* Dispatch: WAIT -> ROUTE -> EXCHANGE -> SETTLE -> DONE. In EXCHANGE sending and receiving go on
 * side by side: a wave is a batch that writes the rows for all ranks whose credit was in when it
 * started, so that a late receiver delays only rows meant for it. */

#define MAX_ROWS_A_TOKEN EPD_MAX_TOPK

/* ---- tasks ---- */

static void write_metadata(const struct epd_op *op, const struct epd_target *to, uint32_t token,
                           uint64_t row, uint32_t rank)
{
    const struct epd_group *g = op->seat->group;
    const uint32_t topk = g->shape.topk, local = epd_local_experts(&g->shape);
    if (to->src != NULL)
        to->src[row] = (int32_t)token;
    if (to->ids == NULL)
        return;
    const struct epd_array_map *w = &op->desc->array[EPD_ARRAY_WEIGHTS];
    const float *weights = (const void *)(w->base + (op->entry.in_row + token) * w->stride);
    const int32_t *ids = op->turn->ids + (size_t)token * topk;
    for (uint32_t k = 0; k < topk; k++) {
        const bool here = ids[k] >= 0 && g->expert_rank[ids[k]] == rank;
        to->ids[row * topk + k] = here ? ids[k] - (int32_t)(rank * local) : -1;
        to->weights[row * topk + k] = here ? weights[k] : 0.0f;
    }
}

static void send_slice(void *arg, uint32_t index)
{
    struct epd_op *op = arg;
    const struct epd_group *g = op->seat->group;
    const struct epd_turn *turn = op->turn;
    const struct epd_array_map *x = &op->desc->array[EPD_ARRAY_X];
    const bool expert_major = g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR;
    const uint64_t capacity = epd_recv_rows(&g->shape);
    const uint32_t first = index * op->slice_tokens;
    const uint32_t end = first + op->slice_tokens < op->b ? first + op->slice_tokens : op->b;
    for (uint32_t t = first; t < end; t++) {
        struct epd_row_copy copies[MAX_ROWS_A_TOKEN];
        uint32_t n = 0;
        const struct epd_term *terms = turn->terms + (size_t)t * g->shape.topk;
        for (uint32_t i = 0; i < turn->n_terms[t]; i++) {
            const uint32_t bucket = terms[i].bucket;
            const uint32_t rank = expert_major ? g->expert_rank[bucket] : bucket;
            const uint64_t row = (uint64_t)turn->base[bucket] + terms[i].index;
            if (!terms[i].write || (op->wave >> rank & 1u) == 0 ||
                terms[i].index >= turn->count[bucket] || row >= capacity)
                continue;
            const struct epd_target *to = &op->target[rank];
            copies[n++] = (struct epd_row_copy){
                .dst = to->recv + row * to->stride,
                .src = x->base + (op->entry.in_row + t) * x->stride,
            };
            write_metadata(op, to, t, row, rank);
        }
        g->engine->transport->copy_rows(copies, n, g->row_bytes);
    }
}

/* ---- sending ---- */

static uint8_t *resolve(const struct epd_group *g, const struct epd_xarray *array, uint64_t bytes)
{
    const struct epd_chunk *chunk = epd_chunks_find(g->engine->chunks, array->chunk);
    if (chunk == NULL || array->offset > chunk->bytes || bytes > chunk->bytes - array->offset)
        return NULL;
    return chunk->base + array->offset;
}

static bool resolve_target(const struct epd_group *g, const struct epd_xcredit *credit,
                           struct epd_target *to)
{
    const uint64_t rows = credit->rows, selections = rows * g->shape.topk;
    if (rows != epd_recv_rows(&g->shape) || credit->stride < g->row_bytes)
        return false;
    to->stride = credit->stride;
    to->recv = resolve(g, &credit->recv, (rows - 1) * credit->stride + g->row_bytes);
    to->src = credit->src.chunk ? (void *)resolve(g, &credit->src, rows * 4u) : NULL;
    to->ids = credit->ids.chunk ? (void *)resolve(g, &credit->ids, selections * 4u) : NULL;
    to->weights =
        credit->weights.chunk ? (void *)resolve(g, &credit->weights, selections * 4u) : NULL;
    return to->recv != NULL && (to->src != NULL || credit->src.chunk == 0) &&
           (to->ids != NULL) == (to->weights != NULL) &&
           (to->ids != NULL || credit->ids.chunk == 0);
}

/* First row of this source in each bucket: after the rows of lower ranks (expert-major), or the
 * source's own block (rank-major). */
static void set_bases(struct epd_op *op, const struct epd_epoch *e)
{
    const struct epd_group *g = op->seat->group;
    const uint32_t me = op->seat->rank, local = epd_local_experts(&g->shape);
    for (uint32_t c = 0; c < g->buckets; c++) {
        if (g->shape.layout == EPD_LAYOUT_RANK_MAJOR) {
            op->turn->base[c] = (uint32_t)epd_row_rank_major(&g->shape, me, 0);
            continue;
        }
        uint32_t begin = 0;
        EPD_FOR_RANKS(r, g->present & (epd_rank_bit(me) - 1))
        begin += e->counts[(size_t)r * g->buckets + c];
        op->turn->base[c] = (uint32_t)epd_row_expert_major(&g->shape, c % local, begin, 0);
    }
}

static bool start_wave(struct epd_op *op, const struct epd_epoch *e, uint64_t ranks)
{
    const struct epd_group *g = op->seat->group;
    EPD_FOR_RANKS(r, ranks)
    {
        if (!resolve_target(g, &e->credit[r], &op->target[r])) {
            const struct epd_cause cause = {
                .status = EPD_EINTERNAL,
                .rank = (int16_t)r,
                .other_rank = -1,
                .phase = EPD_PHASE_CREDIT,
            };
            epd_op_report(op, &cause);
            return false;
        }
    }
    if (op->sent == (g->present & ~op->turn->need))
        set_bases(op, e); /* first wave: all counts that matter are in */
    op->wave = ranks;
    epd_op_start_batch(op, send_slice, epd_op_slices(op));
    return true;
}

static bool step_send(struct epd_op *op, const struct epd_epoch *e)
{
    const struct epd_group *g = op->seat->group;
    if (epd_op_batch_ended(op)) {
        if (!op->revoked) {
            op->sent |= op->wave;
            epd_exchange_publish_done(op, op->wave);
        }
        op->wave = 0;
        return true;
    }
    if (op->running || op->revoked || op->reported)
        return false;
    if (g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR && e->headers != g->present)
        return false;
    const uint64_t ready = op->turn->need & ~op->sent & e->credits;
    return ready != 0 && start_wave(op, e, ready);
}

/* ---- receiving ---- */

static bool overlaps(const struct epd_turn *turn, const uint8_t *begin, const uint8_t *end)
{
    return (begin < turn->recv_end && turn->recv_begin < end) ||
           (begin < turn->rows_end && turn->rows_begin < end);
}

/* An older turn whose memory the receive set of this one overlaps; NULL: none. */
static const struct epd_turn *held_by(const struct epd_op *op)
{
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        const struct epd_turn *turn = &op->seat->turn[i];
        if (turn->active && turn->epoch < op->entry.epoch &&
            overlaps(turn, op->turn->recv_begin, op->turn->recv_end))
            return turn;
    }
    return NULL;
}

static bool step_receive(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    bool moved = false;
    if (!op->credited && !op->revoked && held_by(op) == NULL) {
        epd_exchange_publish_credit(op);
        op->credited = true;
        moved = true;
    }
    if (op->credited && op->arrived != g->present) {
        uint64_t in = epd_exchange_done(op->seat, op->entry.epoch, g->present & ~op->arrived);
        op->arrived |= in;
        moved = moved || in != 0;
    }
    return moved;
}

static void write_counts(struct epd_op *op, const struct epd_epoch *e)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_array_map *a = op->desc->array;
    const uint32_t me = op->seat->rank, local = epd_local_experts(&g->shape);
    const bool expert_major = g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR;
    const uint32_t n = expert_major ? local : g->shape.ranks;
    int32_t *counts = (int32_t *)(void *)a[EPD_ARRAY_COUNTS].base + op->entry.set * n;
    int32_t *ranges =
        a[EPD_ARRAY_RANGES].base == NULL
            ? NULL
            : (int32_t *)(void *)a[EPD_ARRAY_RANGES].base + op->entry.set * n * g->shape.ranks * 2u;
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sum = 0;
        for (uint32_t r = 0; r < g->shape.ranks; r++) {
            const bool in = (g->present >> r & 1u) != 0;
            const uint32_t *from = e->counts + (size_t)r * g->buckets;
            const uint32_t rows = !in            ? 0
                                  : expert_major ? from[me * local + i]
                                  : r == i       ? from[me]
                                                 : 0;
            if (expert_major && ranges != NULL) {
                ranges[(i * g->shape.ranks + r) * 2u] = (int32_t)sum;
                ranges[(i * g->shape.ranks + r) * 2u + 1u] = (int32_t)rows;
            }
            sum += rows;
        }
        counts[i] = (int32_t)sum;
        total += sum;
    }
    op->rows = total;
}

/* ---- steps ---- */

static bool step_wait(struct epd_op *op)
{
    const struct epd_seat *seat = op->seat;
    if (op->revoked)
        return false;
    unsigned older = 0;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        older += seat->turn[i].active && seat->turn[i].epoch < op->entry.epoch;
    if (older >= EPD_UNRELEASED_MAX)
        return false;
    for (uint64_t t = seat->posted; t < op->ticket; t++) {
        const struct epd_op *o = &seat->op[t % EPD_OP_WINDOW];
        if (o->entry.kind == EPD_OP_DISPATCH && o->state < EPD_OP_EXCHANGE)
            return false; /* dispatches are published in order */
    }
    epd_op_set_state(op, EPD_OP_ROUTE);
    epd_op_start_batch(op, epd_route_run, 1);
    return true;
}

static bool step_route(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    if (!epd_op_batch_ended(op) && op->running)
        return false;
    if (op->cause.status != EPD_OK) {
        epd_op_reject(op);
        return true;
    }
    if (op->revoked)
        return false;
    (void)epd_exchange_epoch(op->seat->group, op->entry.epoch);
    epd_op_set_state(op, EPD_OP_EXCHANGE);
    epd_exchange_publish_dispatch(op);
    op->published = true;
    op->sent = g->present & ~op->turn->need;
    epd_exchange_publish_done(op, op->sent);
    return true;
}

static bool step_exchange(struct epd_op *op)
{
    struct epd_group *g = op->seat->group;
    const struct epd_epoch *e = epd_exchange_epoch(g, op->entry.epoch);
    bool moved = step_send(op, e);
    if (step_receive(op))
        moved = true;
    if (op->revoked || op->running || op->sent != g->present || op->arrived != g->present ||
        e->headers != g->present || epd_exchange_conflict(op) >= 0) /* reported by the step */
        return moved;
    epd_op_set_state(op, EPD_OP_SETTLE);
    return true;
}

/* Combines taken before this dispatch and not yet read by everybody. */
static const struct epd_turn *unsettled(const struct epd_op *op)
{
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        const struct epd_turn *turn = &op->seat->turn[i];
        if (turn->active && turn->combined && turn->combine_ticket < op->ticket)
            return turn;
    }
    return NULL;
}

static bool step_settle(struct epd_op *op)
{
    if (op->revoked || unsettled(op) != NULL)
        return false;
    write_counts(op, epd_exchange_epoch(op->seat->group, op->entry.epoch));
    op->turn->dispatched = true;
    epd_op_finish(op, NULL);
    return true;
}

bool epd_dispatch_step(struct epd_op *op)
{
    switch (op->state) {
    case EPD_OP_WAIT:
        return step_wait(op);
    case EPD_OP_ROUTE:
        return step_route(op);
    case EPD_OP_EXCHANGE:
        return step_exchange(op);
    case EPD_OP_SETTLE:
        return step_settle(op);
    default:
        return false;
    }
}

uint64_t epd_dispatch_missing(const struct epd_op *op, uint32_t *phase)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_turn *turn = op->state == EPD_OP_SETTLE ? unsettled(op) : held_by(op);
    if (op->state == EPD_OP_SETTLE) {
        *phase = EPD_PHASE_RELEASE;
        return turn != NULL ? turn->unread : 0;
    }
    if (op->state != EPD_OP_EXCHANGE || !op->credited) {
        *phase = EPD_PHASE_HOLD; /* without a combine of its own, the seat itself is to blame */
        return turn != NULL && turn->combined ? turn->unread : epd_rank_bit(op->seat->rank);
    }
    const struct epd_epoch *e = epd_exchange_epoch(op->seat->group, op->entry.epoch);
    if (e->headers != g->present) {
        *phase = EPD_PHASE_COUNTS;
        return g->present & ~e->headers;
    }
    if ((op->turn->need & ~op->sent & ~e->credits) != 0) {
        *phase = EPD_PHASE_CREDIT;
        return op->turn->need & ~op->sent & ~e->credits;
    }
    *phase = EPD_PHASE_ROWS;
    return g->present & ~op->arrived;
}
