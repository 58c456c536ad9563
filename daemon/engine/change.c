#define EPD_LOG_COMPONENT "change"
#include "daemon/engine/group_internal.h"
#include "daemon/engine/ring.h"

#include <string.h>

#include "daemon/base/log.h"

/* Revoke, failure of an epoch, generation change, and the step that drives all groups. */

static struct epd_cause cause_of(const struct epd_msg_epoch *msg)
{
    return (struct epd_cause){
        .status = msg->status,
        .rank = (int16_t)msg->rank,
        .other_rank = (int16_t)msg->other_rank,
        .phase = (uint8_t)msg->phase,
    };
}

static enum epd_status need_current(const struct epd_engine *engine,
                                    const struct epd_msg_epoch *msg, struct epd_group **out,
                                    struct epd_error *err)
{
    struct epd_group *g = engine->groups;
    while (g != NULL && g->id != msg->group)
        g = g->link;
    if (g == NULL)
        return epd_fail(err, EPD_ENOENT, "group %llu is not known to this engine",
                        (unsigned long long)msg->group);
    *out = g;
    return EPD_OK;
}

#define FOR_SEATS(seat, g)                                                                         \
    for (uint32_t r_ = 0; r_ < (g)->shape.ranks; r_++)                                             \
        for (struct epd_seat *seat = (g)->seat[r_]; seat != NULL; seat = NULL)

/* ---- revoke ---- */

static bool drained(const struct epd_group *g, uint64_t epoch)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        for (unsigned i = 0; g->seat[r] != NULL && i < EPD_OP_WINDOW; i++) {
            const struct epd_op *op = &g->seat[r]->op[i];
            if (op->running && (epoch == EPD_EPOCH_ALL || op->entry.epoch == epoch))
                return false;
        }
    return true;
}

enum epd_status epd_groups_revoke(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                  struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_current(engine, msg, &g, err);
    if (status != EPD_OK)
        return status;
    struct epd_revoke *slot = NULL;
    for (unsigned i = 0; i < EPD_REVOKES_MAX && slot == NULL; i++)
        if (g->revoke[i].seq == 0)
            slot = &g->revoke[i];
    if (slot == NULL || (msg->epoch != EPD_EPOCH_ALL && g->n_revoked == EPD_REVOKES_MAX))
        return epd_fail(err, EPD_ELIMIT, "more than %u revokes at once", EPD_REVOKES_MAX);
    if (msg->epoch == EPD_EPOCH_ALL)
        g->revoked_all = true;
    else
        g->revoked[g->n_revoked++] = msg->epoch;
    FOR_SEATS(seat, g)
    for (unsigned i = 0; i < EPD_OP_WINDOW; i++) {
        struct epd_op *op = &seat->op[i];
        if (op->state == EPD_OP_FREE || op->state == EPD_OP_DONE ||
            (msg->epoch != EPD_EPOCH_ALL && op->entry.epoch != msg->epoch))
            continue;
        op->revoked = true;
        if (op->running)
            epd_batch_revoke(&op->batch);
    }
    *slot = (struct epd_revoke){.seq = msg->h.seq, .epoch = msg->epoch};
    return EPD_OK;
}

static bool answer_revokes(struct epd_group *g)
{
    bool moved = false;
    for (unsigned i = 0; i < EPD_REVOKES_MAX; i++) {
        if (g->revoke[i].seq == 0 || !drained(g, g->revoke[i].epoch))
            continue;
        epd_control_reply(g->engine, g->revoke[i].seq, NULL);
        g->revoke[i].seq = 0;
        moved = true;
    }
    return moved;
}

/* ---- failure of one epoch ---- */

static void forget_revoked(struct epd_group *g, uint64_t epoch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_revoked; i++)
        if (g->revoked[i] != epoch)
            g->revoked[n++] = g->revoked[i];
    g->n_revoked = n;
}

enum epd_status epd_groups_fail(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_current(engine, msg, &g, err);
    if (status != EPD_OK || msg->generation != g->generation)
        return status; /* a generation change overtook the failure: nothing is left to do */
    const struct epd_cause cause = cause_of(msg);
    forget_revoked(g, msg->epoch);
    g->failed[g->failed_next++ % EPD_FAILED_KEPT] =
        (struct epd_failed){.epoch = msg->epoch, .cause = cause};
    g->failed_count++;
    if (msg->epoch + 1 > g->failed_high)
        g->failed_high = msg->epoch + 1;
    FOR_SEATS(seat, g)
    {
        for (uint64_t t = seat->posted; t < seat->taken; t++) {
            struct epd_op *op = &seat->op[t % EPD_OP_WINDOW];
            if (op->state != EPD_OP_DONE && op->entry.epoch == msg->epoch)
                epd_op_finish(op, &cause);
        }
        for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
            if (seat->turn[i].active && seat->turn[i].epoch == msg->epoch)
                epd_turn_close(&seat->turn[i], &cause);
    }
    return EPD_OK;
}

/* ---- generation change ---- */

static void post_ready(struct epd_seat *seat)
{
    uint64_t released = seat->next_dispatch;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        if (seat->turn[i].active && seat->turn[i].epoch < released)
            released = seat->turn[i].epoch;
    seat->released_epoch = released;
    while (seat->posted < seat->taken &&
           seat->op[seat->posted % EPD_OP_WINDOW].state == EPD_OP_DONE)
        epd_ring_post(seat, &seat->op[seat->posted % EPD_OP_WINDOW]);
}

void epd_seat_abort(struct epd_seat *seat, const struct epd_cause *cause)
{
    for (uint64_t t = seat->posted; t < seat->taken; t++) {
        struct epd_op *op = &seat->op[t % EPD_OP_WINDOW];
        if (op->state != EPD_OP_DONE)
            epd_op_finish(op, cause);
    }
    post_ready(seat);
    /* Entries published and not taken; a hostile writer gets no more than one ring of them. */
    struct epd_op *op = &seat->op[seat->taken % EPD_OP_WINDOW];
    for (uint32_t n = 0; n < seat->depth && epd_ring_peek(seat, &op->entry); n++) {
        op->seat = seat;
        op->turn = NULL;
        op->desc = NULL;
        op->consumed = true;
        op->rows = 0;
        op->busy_ns = 0;
        op->taken_ns = seat->group->engine->now_ns;
        op->cause = *cause;
        op->state = EPD_OP_DONE;
        seat->taken++;
        post_ready(seat);
        op = &seat->op[seat->taken % EPD_OP_WINDOW];
    }
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        epd_turn_close(&seat->turn[i], cause);
    seat->next_dispatch = seat->next_combine = seat->released_epoch = 0;
}

enum epd_status epd_groups_generation(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                      struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_current(engine, msg, &g, err);
    if (status != EPD_OK)
        return status;
    if (!drained(g, EPD_EPOCH_ALL))
        return epd_fail(err, EPD_EBUSY, "group %llu has running tasks: revoke first",
                        (unsigned long long)g->id);
    const struct epd_cause cause = cause_of(msg);
    g->generation = msg->generation;
    g->present = msg->present;
    g->last_change = cause;
    g->armed = false;
    g->revoked_all = g->rollover_reported = false;
    g->n_revoked = g->failed_next = 0;
    g->failed_count = g->failed_high = 0;
    memset(g->failed, 0, sizeof(g->failed));
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        g->epoch[i].used = false;
    /* All engines have drained (REVOKE) and none starts before ARM: nobody else writes here now. */
    if (g->exchange[engine->device] != NULL)
        memset(g->exchange[engine->device], 0, g->map.bytes);
    FOR_SEATS(seat, g)
    {
        epd_ring_set_generation(seat);
        epd_seat_abort(seat, &cause);
    }
    log_debug("group %llu generation %u cause %s", (unsigned long long)g->id, g->generation,
              epd_status_name((enum epd_status)cause.status));
    return EPD_OK;
}

enum epd_status epd_groups_arm(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                               struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_current(engine, msg, &g, err);
    if (status != EPD_OK)
        return status;
    if (msg->generation != g->generation)
        return epd_fail(err, EPD_ESTALE, "arm of generation %u, current is %u", msg->generation,
                        g->generation);
    g->present = msg->present;
    g->armed = true;
    return EPD_OK;
}

/* ---- the step ---- */

static bool step_op(struct epd_op *op)
{
    switch (op->entry.kind) {
    case EPD_OP_DISPATCH:
        return epd_dispatch_step(op);
    case EPD_OP_COMBINE:
        return epd_combine_step(op);
    default:
        return epd_release_step(op);
    }
}

static bool waits(const struct epd_op *op)
{
    if (op->running || op->reported || op->revoked)
        return false;
    if (op->state == EPD_OP_EXCHANGE || op->state == EPD_OP_SETTLE)
        return true;
    return op->state == EPD_OP_WAIT && op->entry.kind == EPD_OP_DISPATCH;
}

/* Deadlines and disagreement between ranks. */
static void check_op(struct epd_op *op)
{
    if (!waits(op))
        return;
    int other = op->published ? epd_exchange_conflict(op) : -1;
    if (other >= 0) {
        const int me = (int)op->seat->rank;
        const struct epd_cause cause = {
            .status = EPD_EMISMATCH,
            .rank = (int16_t)(me < other ? me : other),
            .other_rank = (int16_t)(me < other ? other : me),
            .phase = op->entry.kind == EPD_OP_DISPATCH ? EPD_PHASE_COUNTS : EPD_PHASE_READY,
        };
        epd_op_report(op, &cause);
    } else if (op->seat->group->engine->now_ns >= op->deadline_ns) {
        uint32_t phase;
        uint64_t missing = op->entry.kind == EPD_OP_DISPATCH ? epd_dispatch_missing(op, &phase)
                                                             : epd_combine_missing(op, &phase);
        epd_op_fail_late(op, phase, missing);
    }
}

static bool settle_turns(struct epd_seat *seat)
{
    bool moved = false;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        struct epd_turn *turn = &seat->turn[i];
        if (!turn->active || !turn->rows_shared)
            continue;
        turn->unread &= ~epd_exchange_released(seat, turn->epoch, turn->unread);
        if (turn->unread == 0 && turn->summed) {
            epd_turn_close(turn, NULL);
            moved = true;
        }
    }
    return moved;
}

static bool step_seat(struct epd_seat *seat)
{
    bool moved = false;
    while (epd_op_take(seat))
        moved = true;
    for (uint64_t t = seat->posted; t < seat->taken; t++)
        if (step_op(&seat->op[t % EPD_OP_WINDOW]))
            moved = true;
    if (settle_turns(seat))
        moved = true;
    for (uint64_t t = seat->posted; t < seat->taken; t++)
        check_op(&seat->op[t % EPD_OP_WINDOW]);
    post_ready(seat);
    return moved;
}

static void report_rollover(struct epd_group *g, const struct epd_seat *seat)
{
    if (g->rollover_reported || seat->next_dispatch + 64 < EPD_WORD_EPOCH_LIMIT)
        return;
    struct epd_msg_epoch msg = {
        .h = {.type = EPD_MSG_EPOCH_FAILED, .bytes = sizeof(msg)},
        .group = g->id,
        .epoch = EPD_EPOCH_ALL,
        .generation = g->generation,
        .status = EPD_ERESET,
        .rank = -1,
        .other_rank = -1,
    };
    g->rollover_reported = true;
    epd_control_report(g->engine, &msg);
}

static bool step_group(struct epd_group *g)
{
    bool moved = answer_revokes(g);
    if (g->revoked_all) {
        /* Running batches end; nothing else may move until GENERATION. */
        FOR_SEATS(seat, g)
        for (unsigned i = 0; i < EPD_OP_WINDOW; i++)
            if (epd_op_batch_ended(&seat->op[i]))
                moved = true;
        return answer_revokes(g) || moved;
    }
    if (!g->armed)
        return moved;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        if (g->epoch[i].used && epd_exchange_poll(g, &g->epoch[i]))
            moved = true;
    FOR_SEATS(seat, g)
    {
        if (step_seat(seat))
            moved = true;
        report_rollover(g, seat);
    }
    return answer_revokes(g) || moved;
}

bool epd_groups_step(struct epd_engine *engine)
{
    bool moved = false;
    for (struct epd_group *g = engine->groups; g != NULL; g = g->link)
        if (step_group(g))
            moved = true;
    return moved;
}

uint64_t epd_groups_deadline(const struct epd_engine *engine)
{
    uint64_t first = UINT64_MAX;
    for (struct epd_group *g = engine->groups; g != NULL; g = g->link) {
        if (g->revoked_all || !g->armed)
            continue;
        FOR_SEATS(seat, g)
        for (uint64_t t = seat->posted; t < seat->taken; t++) {
            const struct epd_op *op = &seat->op[t % EPD_OP_WINDOW];
            if (waits(op) && op->deadline_ns < first)
                first = op->deadline_ns;
        }
    }
    return first;
}

bool epd_groups_pending(const struct epd_engine *engine)
{
    for (struct epd_group *g = engine->groups; g != NULL; g = g->link) {
        if (g->revoked_all || !g->armed)
            continue;
        FOR_SEATS(seat, g)
        if (epd_op_pending(seat))
            return true;
    }
    return false;
}
