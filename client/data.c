/* Submission and consumption of a lease's ring (proto/ring.h). No lock, no allocation, no system
 * call unless the engine sleeps. One thread a lease. */
#include "client/internal.h"

#include <string.h>
#include <unistd.h>

#include "proto/version.h"

#define ENTRY_PAYLOAD offsetof(struct epd_entry, seq)

/* ---- submit ----------------------------------------------------------------------------- */

void epdc_ring_bell(const struct epd_lease *lease)
{
    const uint64_t one = 1;
    /* A full counter (EAGAIN) means that the bell is rung already; nothing else can fail. */
    if (write(lease->bell, &one, sizeof(one)) < 0)
        return;
}

static enum epd_status refuse(const struct epd_lease *lease)
{
    if (epdc_owner_forked_fast(&lease->owner))
        return EPD_EFORKED;
    enum epd_status lost = epdc_session_lost(lease->epd);
    if (lost != EPD_OK)
        return lost;
    if (lease->broken != EPD_OK)
        return lease->broken;
    return lease->submitted - lease->consumed >= lease->depth ? EPD_EBUSY : EPD_OK;
}

/* Publish *entry (all but abi, generation and seq filled) as the next submission. */
static void publish(struct epd_lease *lease, struct epd_entry *entry, struct epd_ticket *ticket_out)
{
    uint64_t ticket = lease->submitted;
    struct epd_entry *slot = epd_ring_entry(lease->area, lease->depth, ticket);

    entry->abi = EPD_ABI_VERSION;
    entry->group_generation = lease->generation;
    /* The engine polls slot->seq: the payload is written without touching it. */
    memcpy(slot, entry, ENTRY_PAYLOAD);
    __atomic_store_n(&slot->seq, ticket + 1, __ATOMIC_SEQ_CST);
    lease->submitted = ticket + 1;
    /* Pairs with the engine: sleeping = 1, then a last look at seq. One of us sees the other. */
    if (__atomic_load_n(&lease->page->sleeping, __ATOMIC_SEQ_CST) != 0)
        epdc_ring_bell(lease);
    if (ticket_out)
        *ticket_out = (struct epd_ticket){.ticket = ticket, .epoch = entry->epoch};
}

static bool submit_valid(const struct epd_op *op, const struct epd_submit *s, uint32_t kind)
{
    const uint32_t known = EPD_SUBMIT_B_INDIRECT | EPD_SUBMIT_NOTIFY;
    if (!op || !s || s->size != sizeof(*s) || op->kind != kind || (s->flags & ~known) != 0)
        return false;
    if (s->flags != 0 && !op->has_control)
        return false;
    if (!(s->flags & EPD_SUBMIT_B_INDIRECT) && s->b > op->lease->shape.max_tokens)
        return false;
    return s->set < op->sets;
}

static void entry_fill(struct epd_entry *entry, const struct epd_op *op, const struct epd_submit *s)
{
    /* EPD_SUBMIT_* and EPD_ENTRY_* are the same bits. */
    *entry = (struct epd_entry){
        .kind = (uint8_t)op->kind,
        .flags = (uint8_t)s->flags,
        .tag = s->tag,
        .desc_index = op->desc_index,
        .desc_generation = op->desc_generation,
        .b = s->b,
        .b_offset = s->b_offset,
        .notify_offset = s->notify_offset,
        .in_row = s->in_row,
        .out_row = s->out_row,
        .set = s->set,
    };
}
_Static_assert(EPD_SUBMIT_B_INDIRECT == EPD_ENTRY_B_INDIRECT, "same bit");
_Static_assert(EPD_SUBMIT_NOTIFY == EPD_ENTRY_NOTIFY, "same bit");

enum epd_status epd_dispatch(struct epd_op *op, const struct epd_submit *submit,
                             struct epd_ticket *ticket_out)
{
    if (!submit_valid(op, submit, EPD_OP_DISPATCH))
        return EPD_EINVAL;
    struct epd_lease *lease = op->lease;
    enum epd_status status = refuse(lease);
    if (status != EPD_OK)
        return status;

    struct epd_entry entry;
    entry_fill(&entry, op, submit);
    entry.out_row = 0;
    entry.epoch = lease->next_epoch++;
    publish(lease, &entry, ticket_out);
    op->tickets_end = lease->submitted;
    return EPD_OK;
}

enum epd_status epd_combine(struct epd_op *op, const struct epd_submit *submit,
                            struct epd_ticket *ticket_out)
{
    if (!submit_valid(op, submit, EPD_OP_COMBINE))
        return EPD_EINVAL;
    struct epd_lease *lease = op->lease;
    enum epd_status status = refuse(lease);
    if (status != EPD_OK)
        return status;
    if (submit->epoch >= lease->next_epoch)
        return EPD_EINVAL; /* no dispatch of this seat has that epoch */

    struct epd_entry entry;
    entry_fill(&entry, op, submit);
    entry.epoch = submit->epoch;
    publish(lease, &entry, ticket_out);
    op->tickets_end = lease->submitted;
    return EPD_OK;
}

enum epd_status epd_release(struct epd_lease *lease, uint64_t epoch, struct epd_ticket *ticket_out)
{
    if (!lease)
        return EPD_EINVAL;
    enum epd_status status = refuse(lease);
    if (status != EPD_OK)
        return status;
    if (epoch >= lease->next_epoch)
        return EPD_EINVAL;

    struct epd_entry entry = {.kind = EPD_OP_RELEASE, .epoch = epoch};
    publish(lease, &entry, ticket_out);
    return EPD_OK;
}

/* ---- consume ---------------------------------------------------------------------------- */

int epdc_ring_posted(const struct epd_lease *lease, uint64_t ticket)
{
    /* The counter decides, not the slot: an engine that died between the two posts the completion
     * again in its next incarnation, which still needs the entry's slot. */
    const struct epd_ring_header *header = epd_ring_header_at(lease->area);
    uint64_t completed = __atomic_load_n(&header->completed, __ATOMIC_ACQUIRE);
    if (completed <= ticket)
        return 0;
    if (completed > lease->submitted)
        return -1;
    const struct epd_completion *slot = epd_ring_completion(lease->area, lease->depth, ticket);
    return __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) == ticket + 1 ? 1 : -1;
}

static void result_fill(struct epd_result *out, const struct epd_completion *c, uint64_t ticket)
{
    *out = (struct epd_result){
        .ticket = ticket,
        .epoch = c->epoch,
        .released_epoch = c->released_epoch,
        .value = c->value,
        .status = (enum epd_status)c->status,
        .tag = c->tag,
        .kind = c->kind,
        .phase = c->phase,
        .field = c->field,
        .rank = c->rank,
        .other_rank = c->other_rank,
        .generation = c->generation,
        .rows = c->rows,
        .wait_us = c->wait_us,
        .work_us = c->work_us,
        .epoch_consumed = (c->flags & EPD_COMPLETION_EPOCH_CONSUMED) ? 1u : 0u,
    };
}

/* A dispatch that consumed nothing gives its epoch back. Dispatches submitted behind it fail with
 * EORDER for no other reason, so only the first failure of a row moves next_epoch; those submitted
 * before that moment (older than rollback_ticket) do not move it again. */
static void roll_back(struct epd_lease *lease, const struct epd_result *r)
{
    if (r->kind != EPD_OP_DISPATCH || r->epoch_consumed || r->ticket < lease->rollback_ticket)
        return;
    lease->next_epoch = r->status == EPD_EORDER ? r->value : r->epoch;
    lease->rollback_ticket = lease->submitted;
}

static void account_failure(struct epd_lease *lease, const struct epd_result *r)
{
    if (r->ticket < lease->rearm_ticket)
        return;
    if (epd_status_scope_of(r->status) >= EPD_SCOPE_GROUP)
        lease->broken = r->status;
    else
        roll_back(lease, r);
}

void epdc_ring_consume(struct epd_lease *lease, struct epd_result *out)
{
    uint64_t ticket = lease->consumed;
    const struct epd_completion *c = epd_ring_completion(lease->area, lease->depth, ticket);
    struct epd_result r;
    result_fill(&r, c, ticket);
    lease->consumed = ticket + 1;
    if (r.status != EPD_OK)
        account_failure(lease, &r);
    *out = r;
}

void epdc_ring_rearm(struct epd_lease *lease, uint32_t generation)
{
    lease->broken = EPD_OK;
    lease->dead_ns = 0;
    if (generation == lease->generation)
        return;
    lease->generation = generation;
    lease->next_epoch = 0;
    lease->rollback_ticket = lease->submitted;
    lease->rearm_ticket = lease->submitted;
}
