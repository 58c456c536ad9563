#include "daemon/core/acquire.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/core/change.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/grant.h"
#include "daemon/core/must.h"
#include "proto/ring.h"

struct epd_acquire {
    struct epd_core *core;
    uint64_t session;
    struct epd_lease_request request;
    uint8_t key[EPD_KEY_BYTES];
    struct epd_lease_caller caller;
};

bool epd_acquire_alive(const struct epd_acquire *a)
{
    return a->caller.alive == NULL || a->caller.alive(a->caller.arg);
}

void epd_acquire_answer(struct epd_acquire *a, const struct epd_lease_info *info,
                        const struct epd_error *err)
{
    a->core->counters.refused += err != NULL && err->status == EPD_EPERM;
    a->caller.fn(a->caller.arg, info, err);
    free(a);
}

static void on_ring(void *arg, const struct epd_range *range, const struct epd_error *err)
{
    struct epd_lease *lease = arg;
    struct epd_error lost;
    if (err == NULL) {
        lease->chunk = range->chunk;
        lease->offset = range->offset;
    }
    if (err == NULL && lease->leaving) {
        (void)epd_fail(&lost, EPD_ESESSIONLOST, "the session or the group ended");
        err = &lost;
    }
    if (err != NULL)
        epd_lease_abandon(lease, err);
    else if (epd_group_stable(lease->group))
        epd_lease_join(lease);
    /* else the change that runs takes it along */
}

static enum epd_status check_seat(const struct epd_acquire *a, const struct epd_session *session,
                                  const struct epd_group *g, struct epd_error *err)
{
    const struct epd_lease_request *r = &a->request;
    epd_assert(session != NULL && g != NULL);
    if (g->uid != session->peer.uid)
        return epd_fail(err, EPD_EPERM, "group %s belongs to user %u, the session to user %u",
                        g->name, (unsigned)g->uid, (unsigned)session->peer.uid);
    if (g->has_key &&
        (r->key_len != EPD_KEY_BYTES || !epd_bytes_equal(a->key, g->key, EPD_KEY_BYTES)))
        return epd_fail(err, EPD_EPERM, "group %s has a key, and this is not it", g->name);
    if (r->rank >= g->shape.ranks)
        return epd_fail(err, EPD_EINVAL, "rank %u, the group has 0..%u", r->rank,
                        g->shape.ranks - 1);
    if (r->depth < EPD_RING_DEPTH_MIN || r->depth > EPD_RING_DEPTH_MAX ||
        (r->depth & (r->depth - 1)) != 0)
        return epd_fail(err, EPD_EINVAL, "ring_depth %u must be a power of two in 4..4096",
                        r->depth);
    const struct epd_seat *seat = &g->seat[r->rank];
    if (seat->joiner != NULL)
        return epd_fail(err, EPD_EBUSY, "rank %u is being leased by pid %d", r->rank,
                        (int)seat->joiner->session->peer.pid);
    if (seat->lease != NULL && seat->lease->state != EPD_LEASE_RECLAIMING && !r->takeover)
        return epd_fail(err, EPD_EBUSY, "rank %u is leased by %s, pid %d; takeover is possible",
                        r->rank, seat->lease->session->name, (int)seat->lease->session->peer.pid);
    const struct epd_device *failed = epd_change_failed_device(g);
    if (failed != NULL)
        return epd_fail(err, EPD_EDEVICE, "device %u of group %s has failed; see its log",
                        epd_device_index(failed), g->name);
    return EPD_OK;
}

static enum epd_status lease_new(struct epd_acquire *a, struct epd_session *session,
                                 struct epd_group *g, struct epd_lease **out, struct epd_error *err)
{
    struct epd_lease *lease = epd_must_calloc(sizeof(*lease));
    enum epd_status status = epd_handles_add(&a->core->leases, lease, &lease->handle, err);
    if (status != EPD_OK) {
        free(lease);
        return status;
    }
    lease->id = epd_handle_pack(lease->handle);
    lease->session = session;
    lease->group = g;
    lease->rank = a->request.rank;
    lease->depth = a->request.depth;
    lease->acquire = a;
    lease->next = session->leases;
    session->leases = lease;
    session->n_leases++;
    g->refs++;
    g->seat[lease->rank].joiner = lease;
    *out = lease;
    return EPD_OK;
}

/* Runs again, from the start, each time something changed that it waited for. */
static void attempt(void *arg)
{
    struct epd_acquire *a = arg;
    struct epd_session *session = epd_session_by_id(a->core, a->session);
    struct epd_group *g = NULL;
    struct epd_lease *lease;
    struct epd_error err;
    enum epd_status status = EPD_OK;
    if (session == NULL || session->state != EPD_SESSION_ACTIVE)
        status = epd_fail(&err, EPD_ESESSIONLOST, "the session has ended");
    else if (!epd_acquire_alive(a))
        status = epd_fail(&err, EPD_ECANCELED, "the call was cancelled");
    if (status == EPD_OK)
        status = epd_group_get(a->core, a->request.group, &g, &err);
    if (status == EPD_OK && (g->destroy || g->state == EPD_GROUP_DROPPING))
        status = epd_fail(&err, EPD_ESTALE, "group %s is being destroyed", g->name);
    if (status == EPD_OK)
        status = check_seat(a, session, g, &err);
    if (status != EPD_OK) {
        epd_acquire_answer(a, NULL, &err);
        return;
    }
    const struct epd_lease *holder = g->seat[a->request.rank].lease;
    if (!epd_group_stable(g) || !epd_device_running(g->core->device[g->device[a->request.rank]]) ||
        (holder != NULL && holder->state == EPD_LEASE_RECLAIMING)) {
        epd_waiters_add(&g->waiters, attempt, a);
        return;
    }
    if (lease_new(a, session, g, &lease, &err) != EPD_OK) {
        epd_acquire_answer(a, NULL, &err);
        return;
    }
    const struct epd_chunk_spec spec = {.kind = EPD_CHUNK_RINGS,
                                        .device = g->device[lease->rank],
                                        .bytes = epd_ring_bytes(lease->depth),
                                        .session = session};
    epd_chunk_take_range(&spec, EPD_CHUNK_STEP, on_ring, lease);
}

void epd_lease_acquire(struct epd_session *session, const struct epd_lease_request *request,
                       const struct epd_lease_caller *caller)
{
    struct epd_acquire *a = epd_must_calloc(sizeof(*a));
    *a = (struct epd_acquire){
        .core = session->core, .session = session->id, .request = *request, .caller = *caller};
    if (request->key_len == EPD_KEY_BYTES)
        memcpy(a->key, request->key, EPD_KEY_BYTES);
    if (a->request.depth == 0)
        a->request.depth = EPD_RING_DEPTH_DEFAULT;
    attempt(a);
}
