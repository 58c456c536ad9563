#define EPD_LOG_COMPONENT "op"
#include "daemon/engine/group_internal.h"
#include "daemon/engine/ring.h"

#include "daemon/base/log.h"
#include "daemon/base/util.h"

/* Bytes that one slice of a batch moves, about: large enough to drown the cost of claiming it,
 * small enough that ops of other groups get their turn within tens of microseconds. */
#define SLICE_BYTES (128u * 1024u)

/* ---- states ---- */

static const char *const g_state_names[EPD_OP_STATES] = {"free",     "wait",   "route",
                                                         "exchange", "settle", "done"};
/* Legal edges: bit `to` of row `from`. */
static const uint8_t g_state_edges[EPD_OP_STATES] = {
    [EPD_OP_FREE] = 1u << EPD_OP_WAIT,
    [EPD_OP_WAIT] = 1u << EPD_OP_ROUTE | 1u << EPD_OP_EXCHANGE | 1u << EPD_OP_DONE,
    [EPD_OP_ROUTE] = 1u << EPD_OP_EXCHANGE | 1u << EPD_OP_DONE,
    [EPD_OP_EXCHANGE] = 1u << EPD_OP_SETTLE | 1u << EPD_OP_DONE,
    [EPD_OP_SETTLE] = 1u << EPD_OP_DONE,
    [EPD_OP_DONE] = 1u << EPD_OP_FREE,
};

void epd_op_set_state(struct epd_op *op, enum epd_op_state state)
{
    epd_assert((g_state_edges[op->state] >> state & 1u) != 0);
    log_debug("op %s -> %s", g_state_names[op->state], g_state_names[state]);
    op->state = state;
}

void epd_turn_close(struct epd_turn *turn, const struct epd_cause *cause)
{
    turn->cause = cause != NULL ? *cause : (struct epd_cause){.rank = -1, .other_rank = -1};
    turn->active = false;
    turn->rows_shared = false;
    turn->unread = 0;
    turn->recv_begin = turn->recv_end = NULL;
    turn->rows_begin = turn->rows_end = NULL;
}

void epd_op_finish(struct epd_op *op, const struct epd_cause *cause)
{
    if (cause != NULL) {
        op->cause = *cause;
        op->rows = 0;
        if (op->turn != NULL && op->turn->active && op->turn->epoch == op->entry.epoch)
            epd_turn_close(op->turn, cause);
    }
    epd_op_set_state(op, EPD_OP_DONE);
}

void epd_op_reject(struct epd_op *op)
{
    struct epd_seat *seat = op->seat;
    const struct epd_cause cause = op->cause;
    const struct epd_cause later = {
        .status = EPD_EORDER,
        .rank = (int16_t)seat->rank,
        .other_rank = -1,
        .phase = EPD_PHASE_VALIDATE,
        .field = EPD_FIELD_EPOCH,
        .value = op->entry.epoch,
    };
    /* Later dispatches cannot have been published: they wait for this one (dispatch.c). */
    for (uint64_t t = op->ticket; t < seat->taken; t++) {
        struct epd_op *o = &seat->op[t % EPD_OP_WINDOW];
        if (o->state == EPD_OP_DONE || o->turn == NULL || o->entry.epoch < op->entry.epoch)
            continue;
        o->consumed = false;
        epd_op_finish(o, o->entry.epoch == op->entry.epoch ? &cause : &later);
    }
    seat->next_dispatch = op->entry.epoch;
    if (seat->next_combine > op->entry.epoch)
        seat->next_combine = op->entry.epoch;
}

/* ---- batches ---- */

uint32_t epd_op_slices(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    uint32_t tokens = SLICE_BYTES / (g->row_bytes * (g->shape.topk < 8 ? g->shape.topk : 8));
    op->slice_tokens = tokens < 1 ? 1 : tokens > 64 ? 64 : tokens;
    return (op->b + op->slice_tokens - 1) / op->slice_tokens;
}

void epd_op_start_batch(struct epd_op *op, void (*run)(void *, uint32_t), uint32_t count)
{
    op->batch.run = run;
    op->batch.arg = op;
    op->batch.count = count;
    op->batch_ns = op->seat->group->engine->now_ns;
    op->running = true;
    epd_workers_submit(op->seat->group->engine->workers, &op->batch);
}

bool epd_op_batch_ended(struct epd_op *op)
{
    if (!op->running || !epd_batch_done(&op->batch))
        return false;
    op->running = false;
    op->busy_ns += op->seat->group->engine->now_ns - op->batch_ns;
    return true;
}

/* ---- failure ---- */

const struct epd_failed *epd_group_failed(const struct epd_group *group, uint64_t epoch)
{
    if (epoch >= group->failed_high)
        return NULL;
    for (uint32_t i = 0; i < EPD_FAILED_KEPT; i++)
        if (group->failed[i].cause.status != 0 && group->failed[i].epoch == epoch)
            return &group->failed[i];
    return NULL;
}

bool epd_group_revoked(const struct epd_group *group, uint64_t epoch)
{
    if (group->revoked_all)
        return true;
    for (uint32_t i = 0; i < group->n_revoked; i++)
        if (group->revoked[i] == epoch)
            return true;
    return false;
}

void epd_op_report(struct epd_op *op, const struct epd_cause *cause)
{
    const struct epd_group *g = op->seat->group;
    struct epd_msg_epoch msg = {
        .h = {.type = EPD_MSG_EPOCH_FAILED, .bytes = sizeof(msg)},
        .group = g->id,
        .epoch = op->entry.epoch,
        .generation = g->generation,
        .status = cause->status,
        .rank = cause->rank,
        .other_rank = cause->other_rank,
        .phase = cause->phase,
        .kind = op->entry.kind,
    };
    op->reported = true;
    epd_control_report(g->engine, &msg);
}

void epd_op_fail_late(struct epd_op *op, uint32_t phase, uint64_t missing)
{
    const struct epd_cause cause = {
        .status = EPD_ERANKLATE,
        .rank = missing != 0 ? (int16_t)__builtin_ctzll(missing) : (int16_t)op->seat->rank,
        .other_rank = -1,
        .phase = (uint8_t)phase,
    };
    epd_op_report(op, &cause);
}

/* ---- taking entries: copied, validated, then used ---- */

static enum epd_status bad(struct epd_op *op, enum epd_status status, enum epd_field field,
                           uint64_t value)
{
    op->cause = (struct epd_cause){
        .status = status,
        .rank = (int16_t)op->seat->rank,
        .other_rank = -1,
        .phase = EPD_PHASE_VALIDATE,
        .field = (uint8_t)field,
        .value = value,
    };
    return status;
}

/* Rows [first, first + n) of `row_bytes` each lie inside the array. */
static bool rows_fit(const struct epd_array_map *a, uint64_t first, uint32_t n, uint64_t row_bytes)
{
    if (n == 0)
        return true;
    if (a->base == NULL || a->bytes < row_bytes || first > UINT32_MAX)
        return false;
    uint64_t last = first + n - 1; /* < 2^33; stride <= bytes checked at bind: no overflow */
    return a->stride == 0 || last <= (a->bytes - row_bytes) / a->stride;
}

static enum epd_status check_header(struct epd_op *op, const struct epd_desc **desc_out)
{
    const struct epd_entry *e = &op->entry;
    const struct epd_seat *seat = op->seat;
    if (e->abi != EPD_ABI_VERSION)
        return bad(op, EPD_EVERSION, EPD_FIELD_ABI, e->abi);
    if (e->group_generation != seat->group->generation) {
        op->cause = seat->group->last_change;
        if (op->cause.status == 0)
            return bad(op, EPD_EGENERATION, EPD_FIELD_GENERATION, e->group_generation);
        return (enum epd_status)op->cause.status;
    }
    if (e->kind == EPD_OP_POST_RECEIVE)
        return bad(op, EPD_EUNSUPPORTED, EPD_FIELD_KIND, e->kind);
    if (e->kind < EPD_OP_DISPATCH || e->kind > EPD_OP_RELEASE)
        return bad(op, EPD_EINVAL, EPD_FIELD_KIND, e->kind);
    if ((e->flags & ~(EPD_ENTRY_B_INDIRECT | EPD_ENTRY_NOTIFY)) != 0)
        return bad(op, EPD_EINVAL, EPD_FIELD_FLAGS, e->flags);
    for (unsigned i = 0; i < EPD_ARRAY_LEN(e->reserved); i++)
        if (e->reserved[i] != 0)
            return bad(op, EPD_EINVAL, EPD_FIELD_RESERVED, e->reserved[i]);
    if (e->kind == EPD_OP_RELEASE)
        return e->flags == 0 ? EPD_OK : bad(op, EPD_EINVAL, EPD_FIELD_FLAGS, e->flags);
    if (e->desc_index >= EPD_MAX_DESCS)
        return bad(op, EPD_EINVAL, EPD_FIELD_DESC, e->desc_index);
    const struct epd_desc *desc = &seat->desc[e->desc_index];
    if (desc->generation == 0 || desc->generation != e->desc_generation || desc->kind != e->kind)
        return bad(op, EPD_ESTALE, EPD_FIELD_DESC, e->desc_index);
    *desc_out = desc;
    return EPD_OK;
}

/* Control words (b, notify), the number of tokens and the receive set. */
static enum epd_status check_control(struct epd_op *op, const struct epd_desc *desc)
{
    const struct epd_entry *e = &op->entry;
    const struct epd_group *g = op->seat->group;
    const struct epd_array_map *c = &desc->array[EPD_ARRAY_CONTROL];
    if ((e->flags & EPD_ENTRY_NOTIFY) != 0 && (c->base == NULL || e->notify_offset % 8 != 0 ||
                                               c->bytes < 8 || e->notify_offset > c->bytes - 8))
        return bad(op, EPD_EINVAL, EPD_FIELD_NOTIFY_OFFSET, e->notify_offset);
    op->b = e->b;
    if ((e->flags & EPD_ENTRY_B_INDIRECT) != 0) {
        if (c->base == NULL || e->b_offset % 4 != 0 || c->bytes < 4 || e->b_offset > c->bytes - 4)
            return bad(op, EPD_EINVAL, EPD_FIELD_B_OFFSET, e->b_offset);
        op->b = __atomic_load_n((const uint32_t *)(const void *)(c->base + e->b_offset),
                                __ATOMIC_ACQUIRE);
    }
    if (e->kind == EPD_OP_DISPATCH && op->b > g->shape.max_tokens)
        return bad(op, EPD_EINVAL, EPD_FIELD_B, op->b);
    if (e->set >= desc->sets)
        return bad(op, EPD_EINVAL, EPD_FIELD_SET, e->set);
    return EPD_OK;
}

static struct epd_turn *find_turn(struct epd_seat *seat, uint64_t epoch)
{
    struct epd_turn *turn = &seat->turn[epd_exchange_slot(epoch)];
    return turn->active && turn->epoch == epoch ? turn : NULL;
}

/* Epochs that failed before this seat came to them end at once with the group's cause. */
static enum epd_status check_failed(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_failed *failed = epd_group_failed(g, op->entry.epoch);
    if (failed != NULL) {
        op->cause = failed->cause;
        return (enum epd_status)failed->cause.status;
    }
    /* Nothing can have completed without this seat, so an epoch below a failed one failed too. */
    if (op->entry.kind == EPD_OP_DISPATCH && op->entry.epoch < g->failed_high &&
        op->entry.epoch + EPD_FAILED_KEPT < g->failed_high)
        return bad(op, EPD_EEPOCH, EPD_FIELD_EPOCH, op->entry.epoch);
    return EPD_OK;
}

static enum epd_status check_unreleased(struct epd_op *op)
{
    unsigned unreleased = 0, ending = 0;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        const struct epd_turn *turn = &op->seat->turn[i];
        unreleased += turn->active;
        ending += turn->active && (turn->combined || turn->release_asked);
    }
    const struct epd_turn *slot = &op->seat->turn[epd_exchange_slot(op->entry.epoch)];
    if (unreleased - ending >= EPD_UNRELEASED_MAX || slot->active)
        return bad(op, EPD_EUNRELEASED, EPD_FIELD_EPOCH, op->entry.epoch);
    return EPD_OK;
}

static void open_turn(struct epd_op *op, const struct epd_desc *desc)
{
    struct epd_seat *seat = op->seat;
    struct epd_turn *turn = &seat->turn[epd_exchange_slot(op->entry.epoch)];
    const struct epd_array_map *recv = &desc->array[EPD_ARRAY_RECV];
    const uint64_t set_bytes = epd_recv_rows(&seat->group->shape) * recv->stride;
    turn->active = true;
    turn->dispatched = turn->combined = turn->summed = false;
    turn->release_asked = turn->rows_shared = false;
    turn->epoch = op->entry.epoch;
    turn->b = op->b;
    turn->need = turn->unread = 0;
    turn->recv_begin = recv->base + op->entry.set * set_bytes;
    turn->recv_end = turn->recv_begin + set_bytes;
    turn->rows_begin = turn->rows_end = NULL;
    op->turn = turn;
}

static enum epd_status check_dispatch(struct epd_op *op, const struct epd_desc *desc)
{
    struct epd_seat *seat = op->seat;
    const struct epd_group *g = seat->group;
    const struct epd_array_map *a = desc->array;
    const uint32_t topk = g->shape.topk;
    if (op->entry.epoch != seat->next_dispatch)
        return bad(op, EPD_EORDER, EPD_FIELD_EPOCH, seat->next_dispatch);
    if (!rows_fit(&a[EPD_ARRAY_X], op->entry.in_row, op->b, g->row_bytes) ||
        !rows_fit(&a[EPD_ARRAY_IDS], op->entry.in_row, op->b,
                  (uint64_t)topk * epd_ids_bytes(desc->ids_type)) ||
        (g->shape.layout == EPD_LAYOUT_RANK_MAJOR &&
         !rows_fit(&a[EPD_ARRAY_WEIGHTS], op->entry.in_row, op->b, (uint64_t)topk * 4u)))
        return bad(op, EPD_EINVAL, EPD_FIELD_IN_ROW, op->entry.in_row);
    return check_unreleased(op);
}

static enum epd_status check_combine(struct epd_op *op, const struct epd_desc *desc)
{
    struct epd_seat *seat = op->seat;
    const struct epd_group *g = seat->group;
    struct epd_turn *turn = find_turn(seat, op->entry.epoch);
    if (turn == NULL || turn->combined || turn->release_asked ||
        op->entry.epoch < seat->next_combine)
        return bad(op, EPD_EORDER, EPD_FIELD_EPOCH, op->entry.epoch);
    op->b = turn->b;
    if (g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR &&
        !rows_fit(&desc->array[EPD_ARRAY_WEIGHTS], op->entry.in_row, op->b,
                  (uint64_t)g->shape.topk * 4u))
        return bad(op, EPD_EINVAL, EPD_FIELD_IN_ROW, op->entry.in_row);
    if (!rows_fit(&desc->array[EPD_ARRAY_OUT], op->entry.out_row, op->b, g->row_bytes))
        return bad(op, EPD_EINVAL, EPD_FIELD_OUT_ROW, op->entry.out_row);
    const struct epd_array_map *rows = &desc->array[EPD_ARRAY_ROWS];
    const uint64_t set_bytes = epd_recv_rows(&g->shape) * rows->stride;
    turn->combined = true;
    turn->combine_ticket = op->ticket;
    turn->rows_begin = rows->base + op->entry.set * set_bytes;
    turn->rows_end = turn->rows_begin + set_bytes;
    op->turn = turn;
    seat->next_combine = op->entry.epoch + 1;
    return EPD_OK;
}

static enum epd_status check_release(struct epd_op *op)
{
    struct epd_turn *turn = find_turn(op->seat, op->entry.epoch);
    if (turn == NULL || turn->combined || turn->release_asked)
        return bad(op, EPD_EORDER, EPD_FIELD_EPOCH, op->entry.epoch);
    turn->release_asked = true;
    op->turn = turn;
    return EPD_OK;
}

static enum epd_status validate(struct epd_op *op)
{
    const struct epd_desc *desc = NULL;
    enum epd_status status = check_header(op, &desc);
    if (status == EPD_OK && op->entry.kind == EPD_OP_RELEASE) {
        status = check_failed(op);
        return status != EPD_OK ? status : check_release(op);
    }
    if (status == EPD_OK)
        status = check_control(op, desc);
    if (status != EPD_OK)
        return status;
    op->desc = desc; /* its control array may be used from here on (notify) */
    const bool dispatch = op->entry.kind == EPD_OP_DISPATCH;
    if (dispatch && (status = check_dispatch(op, desc)) != EPD_OK)
        return status;
    if ((status = check_failed(op)) != EPD_OK) {
        op->consumed = true;
        if (dispatch)
            op->seat->next_dispatch++;
        return status;
    }
    if (!dispatch)
        return check_combine(op, desc);
    open_turn(op, desc);
    op->seat->next_dispatch++;
    return EPD_OK;
}

/* Copy the next entry if there is one to take now. A dispatch whose epoch slot is still ending
 * stays in the ring until that has ended. */
static bool next_entry(const struct epd_seat *seat, struct epd_entry *out)
{
    if (seat->op[seat->taken % EPD_OP_WINDOW].state != EPD_OP_FREE || !epd_ring_peek(seat, out))
        return false;
    const struct epd_turn *slot = &seat->turn[epd_exchange_slot(seat->next_dispatch)];
    return out->kind != EPD_OP_DISPATCH || !slot->active ||
           !(slot->combined || slot->release_asked) ||
           out->group_generation != seat->group->generation;
}

bool epd_op_pending(const struct epd_seat *seat)
{
    struct epd_entry entry;
    return epd_ring_has_entry(seat) && next_entry(seat, &entry);
}

bool epd_op_take(struct epd_seat *seat)
{
    struct epd_group *g = seat->group;
    struct epd_op *op = &seat->op[seat->taken % EPD_OP_WINDOW];
    struct epd_entry entry;
    if (!next_entry(seat, &entry))
        return false;
    op->entry = entry;
    op->ticket = seat->taken++;
    op->seat = seat;
    op->turn = NULL;
    op->desc = NULL;
    op->b = 0;
    op->rows = 0;
    op->cause = (struct epd_cause){.rank = -1, .other_rank = -1};
    op->revoked = op->reported = op->running = op->consumed = false;
    op->published = op->credited = false;
    op->sent = op->wave = op->arrived = 0;
    op->busy_ns = 0;
    op->order = op->entry.kind == EPD_OP_DISPATCH ? seat->next_combine : seat->next_dispatch;
    op->taken_ns = g->engine->now_ns;
    epd_op_set_state(op, EPD_OP_WAIT);
    op->deadline_ns = op->taken_ns + (op->entry.epoch == 0 ? g->first_timeout_ns : g->timeout_ns);
    if (validate(op) != EPD_OK)
        epd_op_set_state(op, EPD_OP_DONE);
    else
        op->consumed = true;
    op->revoked = epd_group_revoked(g, op->entry.epoch);
    return true;
}
