#include "daemon/engine/group_internal.h"

/* Combine: WAIT (for its dispatch) -> EXCHANGE -> DONE. The seat lends its expert rows to all ranks
 * and sums, for each of its own tokens, the rows that the ranks it sent the token to lend. */

static void sum_slice(void *arg, uint32_t index)
{
    struct epd_op *op = arg;
    const struct epd_group *g = op->seat->group;
    const struct epd_turn *turn = op->turn;
    const bool expert_major = g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR;
    const struct epd_array_map *out = &op->desc->array[EPD_ARRAY_OUT];
    const struct epd_array_map *w = &op->desc->array[EPD_ARRAY_WEIGHTS];
    const uint32_t first = index * op->slice_tokens;
    const uint32_t end = first + op->slice_tokens < op->b ? first + op->slice_tokens : op->b;
    for (uint32_t t = first; t < end; t++) {
        const void *rows[EPD_MAX_TOPK];
        float weights[EPD_MAX_TOPK];
        const struct epd_term *terms = turn->terms + (size_t)t * g->shape.topk;
        const float *given =
            expert_major ? (const void *)(w->base + (op->entry.in_row + t) * w->stride) : NULL;
        for (uint32_t i = 0; i < turn->n_terms[t]; i++) {
            const uint32_t bucket = terms[i].bucket;
            const uint32_t rank = expert_major ? g->expert_rank[bucket] : bucket;
            const uint64_t row = (uint64_t)turn->base[bucket] + terms[i].index;
            rows[i] = op->peer_rows[rank] + row * op->peer_stride[rank];
            if (expert_major)
                weights[i] = given[terms[i].k];
        }
        const struct epd_token_sum sum = {
            .out = out->base + (op->entry.out_row + t) * out->stride,
            .rows = rows,
            .weights = expert_major ? weights : NULL,
            .n = turn->n_terms[t],
        };
        g->engine->transport->sum_token(&sum, g->shape.hidden, g->shape.dtype);
    }
}

static bool resolve_rows(struct epd_op *op, const struct epd_epoch *e, uint32_t rank)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_xheader *h = &e->combine[rank];
    const struct epd_chunk *chunk = epd_chunks_find(g->engine->chunks, h->chunk);
    const uint64_t rows = epd_recv_rows(&g->shape);
    if (chunk == NULL || h->stride < g->row_bytes || h->offset > chunk->bytes ||
        (rows - 1) * h->stride + g->row_bytes > chunk->bytes - h->offset)
        return false;
    op->peer_rows[rank] = chunk->base + h->offset;
    op->peer_stride[rank] = h->stride;
    return true;
}

static bool start_sum(struct epd_op *op, const struct epd_epoch *e)
{
    EPD_FOR_RANKS(r, op->turn->need)
    {
        if (!resolve_rows(op, e, r)) {
            const struct epd_cause cause = {
                .status = EPD_EINTERNAL,
                .rank = (int16_t)r,
                .other_rank = -1,
                .phase = EPD_PHASE_READY,
            };
            epd_op_report(op, &cause);
            return false;
        }
    }
    epd_op_start_batch(op, sum_slice, epd_op_slices(op));
    return true;
}

static bool step_wait(struct epd_op *op)
{
    struct epd_turn *turn = op->turn;
    const struct epd_group *g = op->seat->group;
    if (!turn->active) { /* its dispatch failed */
        const struct epd_cause cause = turn->cause;
        epd_op_finish(op, &cause);
        return true;
    }
    if (op->revoked || !turn->dispatched)
        return false;
    (void)epd_exchange_epoch(op->seat->group, op->entry.epoch);
    turn->rows_shared = true;
    turn->unread = g->present;
    epd_op_set_state(op, EPD_OP_EXCHANGE);
    epd_exchange_publish_combine(op);
    op->published = true;
    epd_exchange_publish_released(op, g->present & ~turn->need);
    return true;
}

static bool step_exchange(struct epd_op *op)
{
    const struct epd_epoch *e = epd_exchange_epoch(op->seat->group, op->entry.epoch);
    if (epd_op_batch_ended(op)) {
        if (op->revoked)
            return true; /* FAIL or GENERATION finishes it */
        epd_exchange_publish_released(op, op->turn->need);
        op->turn->summed = true;
        op->rows = op->b;
        epd_op_finish(op, NULL);
        return true;
    }
    if (op->running || op->revoked || op->reported || (op->turn->need & ~e->combines) != 0 ||
        epd_exchange_conflict(op) >= 0) /* reported by the step */
        return false;
    return start_sum(op, e);
}

bool epd_combine_step(struct epd_op *op)
{
    if (op->state == EPD_OP_WAIT)
        return step_wait(op);
    return op->state == EPD_OP_EXCHANGE && step_exchange(op);
}

bool epd_release_step(struct epd_op *op)
{
    struct epd_turn *turn = op->turn;
    if (op->state != EPD_OP_WAIT || op->revoked || (turn->active && !turn->dispatched))
        return false;
    const struct epd_cause cause = turn->cause;
    if (!turn->active && cause.status != EPD_OK) {
        epd_op_finish(op, &cause);
        return true;
    }
    epd_turn_close(turn, NULL);
    epd_op_finish(op, NULL);
    return true;
}

uint64_t epd_combine_missing(const struct epd_op *op, uint32_t *phase)
{
    const struct epd_epoch *e = epd_exchange_epoch(op->seat->group, op->entry.epoch);
    *phase = EPD_PHASE_READY;
    return op->turn->need & ~e->combines;
}
