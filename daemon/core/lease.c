#define EPD_LOG_COMPONENT "lease"
#include "daemon/core/lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/acquire.h"
#include "daemon/core/change.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/desc.h"
#include "daemon/core/join.h"
#include "daemon/core/must.h"
#include "proto/ring.h"

/* ---- states ---- */

enum event { EV_SET, EV_REFUSED, EV_CHANGE, EV_REARM, EV_LEAVE, EV_CLEARED };
static const char *const g_states[] = {"joining", "leased", "rearm", "reclaiming", "gone"};
static const char *const g_events[] = {"set", "refused", "change", "rearm", "leave", "cleared"};
static const struct epd_fsm_row g_rows[] = {
    {EPD_LEASE_JOINING, EV_SET, EPD_LEASE_LEASED},
    {EPD_LEASE_JOINING, EV_REFUSED, EPD_LEASE_GONE},
    {EPD_LEASE_LEASED, EV_CHANGE, EPD_LEASE_REARM},
    {EPD_LEASE_LEASED, EV_LEAVE, EPD_LEASE_RECLAIMING},
    {EPD_LEASE_REARM, EV_CHANGE, EPD_LEASE_REARM},
    {EPD_LEASE_REARM, EV_REARM, EPD_LEASE_LEASED},
    {EPD_LEASE_REARM, EV_LEAVE, EPD_LEASE_RECLAIMING},
    {EPD_LEASE_RECLAIMING, EV_CLEARED, EPD_LEASE_GONE},
};
static uint64_t g_taken[EPD_ARRAY_LEN(g_rows)];
const struct epd_fsm epd_lease_fsm = {"lease", g_states, g_events, g_rows, EPD_ARRAY_LEN(g_rows),
                                      g_taken};

static void set_state(struct epd_lease *lease, enum event event)
{
    char name[96];
    (void)snprintf(name, sizeof(name), "%s/%u", lease->group->name, lease->rank);
    lease->state = (enum epd_lease_state)epd_fsm_step(&epd_lease_fsm, lease->state, event, name);
}

const char *epd_lease_state_name(const struct epd_lease *lease)
{
    return lease == NULL ? "free" : g_states[lease->state];
}

static struct epd_seat *seat_of(const struct epd_lease *lease)
{
    return &lease->group->seat[lease->rank];
}

/* ---- the end ---- */

static void lease_free(struct epd_lease *lease)
{
    struct epd_session *session = lease->session;
    struct epd_group *g = lease->group;
    struct epd_seat *seat = seat_of(lease);
    struct epd_waiters gone = lease->gone;
    if (lease->chunk != NULL) {
        const struct epd_range range = {lease->chunk, lease->offset, epd_ring_bytes(lease->depth)};
        epd_chunk_give_range(g->core, &range);
    }
    epd_desc_drop_lease(lease);
    if (seat->lease == lease)
        seat->lease = NULL;
    if (seat->joiner == lease)
        seat->joiner = NULL;
    struct epd_lease **at = &session->leases;
    while (*at != lease)
        at = &(*at)->next;
    *at = lease->next;
    session->n_leases--;
    epd_handles_remove(&g->core->leases, lease->handle);
    free(lease);
    epd_waiters_run(&gone);
    epd_session_settle(session);
    epd_change_end_if_due(g);
    epd_waiters_run(&g->waiters);
    epd_group_put(g);
}

static void finish_clear(struct epd_lease *lease)
{
    set_state(lease, EV_CLEARED);
    log_debug("seat %u of group %s is free", lease->rank, lease->group->name);
    lease_free(lease);
}

static void on_cleared(void *arg, const struct epd_link_reply *reply)
{
    struct epd_lease *lease = arg;
    if (reply->err != NULL && reply->msg != NULL)
        log_warn("seat %u of group %s: engine refused to clear it: %s", lease->rank,
                 lease->group->name, reply->err->message);
    finish_clear(lease);
}

void epd_lease_clear(struct epd_lease *lease)
{
    struct epd_device *device = epd_lease_device_of(lease);
    struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_SEAT_CLEAR, .bytes = sizeof(msg)},
                                .group = lease->group->id,
                                .generation = lease->group->generation,
                                .rank = (int32_t)lease->rank};
    if (lease->clearing)
        return;
    lease->clearing = true;
    if (epd_known_to(device, lease->set_in))
        (void)epd_device_request(device, &msg.h, NULL, 0, on_cleared, lease); /* is configured */
    else
        finish_clear(lease);
}

void epd_lease_abandon(struct epd_lease *lease, const struct epd_error *err)
{
    struct epd_acquire *a = lease->acquire;
    lease->acquire = NULL;
    set_state(lease, EV_REFUSED);
    lease_free(lease);
    epd_acquire_answer(a, NULL, err);
}

void epd_lease_leave(struct epd_lease *lease, enum epd_status status, const char *why)
{
    struct epd_group *g = lease->group;
    char text[160];
    const struct epd_cause cause = {.status = status, .rank = (int)lease->rank, .other_rank = -1};
    struct epd_error err;
    switch (lease->state) {
    case EPD_LEASE_JOINING:
        (void)epd_fail(&err, EPD_ESESSIONLOST, "the session or the group ended: %s", why);
        if (lease->sent || lease->chunk == NULL)
            lease->leaving = true; /* a reply is on its way */
        else
            epd_lease_abandon(lease, &err);
        break;
    case EPD_LEASE_LEASED:
    case EPD_LEASE_REARM:
        set_state(lease, EV_LEAVE);
        (void)snprintf(text, sizeof(text), "rank %u: %.120s", lease->rank, why);
        epd_events_add(g->core->events, "lease", g->name, "rank %u left: %s", lease->rank, why);
        epd_change_begin(g, &cause, text);
        break;
    case EPD_LEASE_RECLAIMING:
    case EPD_LEASE_GONE:
        break;
    }
}

/* ---- joining ---- */

static enum epd_status fill_info(struct epd_lease *lease, struct epd_lease_info *info,
                                 struct epd_error *err)
{
    const struct epd_group *g = lease->group;
    *info = (struct epd_lease_info){
        .lease = lease->id,
        .rank = lease->rank,
        .device = g->device[lease->rank],
        .generation = g->generation,
        .chunk = lease->chunk->id,
        .ring_offset = lease->offset,
        .ring_depth = lease->depth,
        .shape = g->shape,
        .incarnation = epd_device_incarnation(epd_lease_device_of(lease)),
    };
    enum epd_status status =
        epd_session_grant_chunk(lease->session, lease->chunk, info->grants, &info->n_grants, err);
    if (status == EPD_OK)
        status = epd_session_grant_device(lease->session, info->device, info->grants,
                                          &info->n_grants, err);
    return status;
}

static void joined(struct epd_lease *lease)
{
    struct epd_acquire *a = lease->acquire;
    struct epd_group *g = lease->group;
    struct epd_seat *seat = seat_of(lease);
    struct epd_lease_info info;
    struct epd_error err;
    epd_assert(seat->lease == NULL && seat->joiner == lease);
    seat->joiner = NULL;
    seat->lease = lease;
    lease->acquire = NULL;
    g->leased_once = true;
    g->core->counters.leases++;
    set_state(lease, EV_SET);
    epd_events_add(g->core->events, "lease", g->name, "rank %u leased by %s pid %d", lease->rank,
                   lease->session->name, (int)lease->session->peer.pid);
    if (lease->leaving || !epd_acquire_alive(a))
        (void)epd_fail(&err, EPD_ECANCELED, "the call was cancelled");
    else if (fill_info(lease, &info, &err) == EPD_OK) {
        epd_acquire_answer(a, &info, NULL);
        return;
    }
    epd_lease_leave(lease, EPD_ERANKLOST, "acquisition cancelled");
    epd_acquire_answer(a, NULL, &err);
}

static void on_seat_set(void *arg, const struct epd_link_reply *reply)
{
    struct epd_lease *lease = arg;
    struct epd_error err;
    lease->sent = false;
    if (reply->err == NULL) {
        joined(lease);
    } else if (reply->msg != NULL) {
        epd_lease_abandon(lease, reply->err);
    } else {
        /* The engine died: the change that follows sends it again. */
        lease->set_in = 0;
        (void)epd_fail(&err, EPD_ESESSIONLOST, "the session or the group ended");
        if (lease->leaving)
            epd_lease_abandon(lease, &err);
    }
}

static struct epd_msg_seat seat_message(const struct epd_lease *lease, bool replay)
{
    return (struct epd_msg_seat){
        .h = {.type = EPD_MSG_SEAT_SET, .bytes = sizeof(struct epd_msg_seat)},
        .group = lease->group->id,
        .rank = lease->rank,
        .depth = lease->depth,
        .chunk = lease->chunk->id,
        .offset = lease->offset,
        .replay = replay,
    };
}

void epd_lease_send(struct epd_lease *lease)
{
    struct epd_device *device = epd_lease_device_of(lease);
    struct epd_msg_seat msg = seat_message(lease, false);
    struct epd_error err;
    int doorbell;
    if (lease->sent)
        return;
    if (epd_session_doorbell(lease->session, epd_device_index(device), &doorbell, &err) != EPD_OK) {
        epd_lease_abandon(lease, &err);
        return;
    }
    /* A device that is down: the change that follows sends it. */
    if (epd_device_request(device, &msg.h, &doorbell, 1, on_seat_set, lease) != EPD_OK)
        return;
    lease->sent = true;
    lease->set_in = epd_device_incarnation(device);
}

void epd_lease_join(struct epd_lease *lease)
{
    struct epd_group *g = lease->group;
    struct epd_lease *holder = seat_of(lease)->lease;
    char text[80];
    const struct epd_cause cause = {
        .status = EPD_ERANKJOINED, .rank = (int)lease->rank, .other_rank = -1};
    if (lease->chunk == NULL || lease->sent)
        return;
    if (holder != NULL) {
        g->core->counters.takeovers++;
        epd_lease_leave(holder, EPD_ERANKJOINED, "taken over");
    } else if (g->allow_absent) {
        (void)snprintf(text, sizeof(text), "rank %u joins", lease->rank);
        epd_change_begin(g, &cause, text);
    } else {
        epd_lease_send(lease);
    }
}

/* ---- the other calls ---- */

enum epd_status epd_lease_get(struct epd_session *session, uint64_t id, struct epd_lease **out,
                              struct epd_error *err)
{
    void *found;
    enum epd_status status =
        epd_handles_get(&session->core->leases, epd_handle_unpack(id), &found, err);
    if (status != EPD_OK) {
        (void)epd_fail_prefix(err, "lease");
        return status;
    }
    struct epd_lease *lease = found;
    if (lease->session != session || lease->state == EPD_LEASE_JOINING)
        return epd_fail(err, EPD_ENOENT, "lease %llu is not this session's",
                        (unsigned long long)id);
    if (lease->state == EPD_LEASE_RECLAIMING)
        return epd_fail(err, EPD_ESTALE, "lease of rank %u was taken over or released",
                        lease->rank);
    *out = lease;
    return EPD_OK;
}

void epd_lease_unarm(struct epd_lease *lease)
{
    if (lease->state == EPD_LEASE_LEASED || lease->state == EPD_LEASE_REARM)
        set_state(lease, EV_CHANGE);
}

void epd_lease_replay(struct epd_lease *lease, struct epd_join *join)
{
    struct epd_device *device = epd_lease_device_of(lease);
    struct epd_msg_seat msg = seat_message(lease, true);
    if (lease->state != EPD_LEASE_LEASED && lease->state != EPD_LEASE_REARM)
        return;
    lease->set_in = epd_device_incarnation(device);
    epd_join_request(join, device, &msg.h, lease->session->doorbell[epd_device_index(device)]);
    epd_desc_replay(lease, join);
}

struct rearm {
    struct epd_core *core;
    uint64_t session, lease;
    struct epd_lease_caller caller;
};

static bool rearm_alive(void *arg)
{
    const struct rearm *r = arg;
    return r->caller.alive == NULL || r->caller.alive(r->caller.arg);
}

static void on_stable(void *arg, struct epd_group *group, const struct epd_error *err)
{
    struct rearm *r = arg;
    struct epd_session *session = epd_session_by_id(r->core, r->session);
    struct epd_lease *lease = NULL;
    struct epd_lease_info info;
    struct epd_error why;
    enum epd_status status = EPD_OK;
    (void)group;
    if (err != NULL) {
        why = *err;
        status = err->status;
    } else if (session == NULL || session->state != EPD_SESSION_ACTIVE) {
        status = epd_fail(&why, EPD_ESESSIONLOST, "the session has ended");
    }
    if (status == EPD_OK) {
        epd_assert(session != NULL);
        status = epd_lease_get(session, r->lease, &lease, &why);
    }
    if (status == EPD_OK) {
        epd_assert(lease != NULL);
        status = fill_info(lease, &info, &why);
    }
    if (status == EPD_OK) {
        if (lease->state == EPD_LEASE_REARM)
            set_state(lease, EV_REARM);
        epd_change_rearmed(lease->group);
        r->caller.fn(r->caller.arg, &info, NULL);
    } else {
        r->caller.fn(r->caller.arg, NULL, &why);
    }
    free(r);
}

void epd_lease_rearm(struct epd_session *session, uint64_t id,
                     const struct epd_lease_caller *caller)
{
    struct epd_lease *lease = NULL;
    struct epd_error err;
    if (epd_lease_get(session, id, &lease, &err) != EPD_OK) {
        caller->fn(caller->arg, NULL, &err);
        return;
    }
    epd_assert(lease != NULL);
    struct rearm *r = epd_must_calloc(sizeof(*r));
    *r = (struct rearm){
        .core = session->core, .session = session->id, .lease = id, .caller = *caller};
    epd_change_wait_stable(lease->group, rearm_alive, on_stable, r);
}

struct releasing {
    epd_done_fn fn;
    void *arg;
};

static void on_released(void *arg)
{
    struct releasing *r = arg;
    r->fn(r->arg, NULL);
    free(r);
}

void epd_lease_release(struct epd_session *session, uint64_t id, epd_done_fn fn, void *arg)
{
    struct epd_lease *lease = NULL;
    struct epd_error err;
    if (epd_lease_get(session, id, &lease, &err) != EPD_OK) {
        fn(arg, &err);
        return;
    }
    epd_assert(lease != NULL);
    struct releasing *r = epd_must_calloc(sizeof(*r));
    *r = (struct releasing){.fn = fn, .arg = arg};
    epd_waiters_add(&lease->gone, on_released, r);
    epd_lease_leave(lease, EPD_ERANKLOST, "released");
}
