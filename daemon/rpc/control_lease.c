/* AcquireLease, ReleaseLease, Rearm. */
#include "daemon/core/lease.h"

#include "daemon/rpc/control_wire.h"

static void on_lease(void *arg, const struct epd_lease_info *info, const struct epd_error *err)
{
    struct epd_pending *p = arg;
    Epd__V1__LeaseReply reply = EPD__V1__LEASE_REPLY__INIT;
    Epd__V1__Shape shape;
    Epd__V1__FdGrant grant[EPD_LEASE_GRANTS], *grants[EPD_LEASE_GRANTS];
    if (err != NULL) {
        epd_pending_fail(p, err);
        return;
    }
    epd_wire_shape_out(&info->shape, &shape);
    epd_wire_grants_out(info->grants, info->n_grants, grant, grants);
    reply.lease = info->lease;
    reply.rank = info->rank;
    reply.device = info->device;
    reply.generation = info->generation;
    reply.chunk = info->chunk;
    reply.ring_offset = info->ring_offset;
    reply.ring_depth = info->ring_depth;
    reply.shape = &shape;
    reply.n_grants = info->n_grants;
    reply.grants = grants;
    reply.incarnation = info->incarnation;
    epd_pending_reply(p, &reply.base);
}

void epd_control_acquire_lease(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__AcquireLeaseRequest *r =
        epd_wire_parse(call, &epd__v1__acquire_lease_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        const struct epd_lease_request request = {
            .group = r->group,
            .rank = r->rank,
            .depth = r->ring_depth,
            .takeover = r->takeover,
            .key = r->key.data,
            .key_len = r->key.len,
        };
        const struct epd_lease_caller caller = {
            .alive = epd_pending_alive, .fn = on_lease, .arg = epd_pending_create(control, call)};
        epd_lease_acquire(session, &request, &caller);
    }
    epd_wire_free(r);
}

void epd_control_release_lease(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__LeaseRequest *r = epd_wire_parse(call, &epd__v1__lease_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL)
        epd_lease_release(session, r->lease, epd_pending_done, epd_pending_create(control, call));
    epd_wire_free(r);
}

void epd_control_rearm(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__LeaseRequest *r = epd_wire_parse(call, &epd__v1__lease_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        const struct epd_lease_caller caller = {
            .alive = epd_pending_alive, .fn = on_lease, .arg = epd_pending_create(control, call)};
        epd_lease_rearm(session, r->lease, &caller);
    }
    epd_wire_free(r);
}
