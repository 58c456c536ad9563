#include "client/internal.h"

#include <stdlib.h>
#include <string.h>

#include "client/fail.h"
#include "proto/version.h"

static const struct epdc_method acquire_lease = {EPDC_CONTROL_PREFIX "AcquireLease",
                                                 &epd__v1__lease_reply__descriptor};
static const struct epdc_method release_lease = {EPDC_CONTROL_PREFIX "ReleaseLease",
                                                 &epd__v1__empty__descriptor};
static const struct epdc_method rearm = {EPDC_CONTROL_PREFIX "Rearm",
                                         &epd__v1__lease_reply__descriptor};

static void lease_request(struct epd_lease *lease, Epd__V1__Session *session,
                          Epd__V1__LeaseRequest *out)
{
    epd__v1__lease_request__init(out);
    epdc_session_message(lease->epd, session);
    out->session = session;
    out->lease = lease->id;
}

static enum epd_status shape_take(struct epd_lease *lease, const Epd__V1__Shape *s,
                                  struct epd_error *err)
{
    if (!s)
        return epdc_fail(err, EPD_EINTERNAL, "daemon's lease has no shape");
    lease->shape = (struct epd_shape){
        .ranks = s->ranks,
        .experts = s->experts,
        .max_tokens = s->max_tokens,
        .topk = s->topk,
        .hidden = s->hidden,
        .dtype = s->dtype,
        .mode = s->mode,
        .layout = s->layout,
    };
    const char *problem = epd_shape_problem(&lease->shape);
    return problem ? epdc_fail(err, EPD_EINTERNAL, "daemon's lease: %s", problem) : EPD_OK;
}

static enum epd_status ring_take(struct epd_lease *lease, const Epd__V1__LeaseReply *r,
                                 struct epd_error *err)
{
    struct epd *epd = lease->epd;
    uint32_t depth = r->ring_depth;
    lease->ring = epdc_maps_get(&epd->maps, EPDC_MAP_CHUNK, r->chunk);
    if (!lease->ring)
        return epdc_fail(err, EPD_EINTERNAL, "daemon granted no chunk %llu for the ring",
                         (unsigned long long)r->chunk);
    if (depth < EPD_RING_DEPTH_MIN || depth > EPD_RING_DEPTH_MAX || (depth & (depth - 1)) != 0 ||
        r->ring_offset % 64 != 0 || r->ring_offset > lease->ring->bytes ||
        lease->ring->bytes - r->ring_offset < epd_ring_bytes(depth))
        return epdc_fail(err, EPD_EINTERNAL,
                         "daemon's ring of depth %u at %llu does not fit its chunk", depth,
                         (unsigned long long)r->ring_offset);
    lease->area = (char *)lease->ring->addr + r->ring_offset;
    lease->depth = depth;
    const struct epd_ring_header *h = epd_ring_header_at(lease->area);
    if (h->magic != EPD_RING_MAGIC || h->depth != depth)
        return epdc_fail(err, EPD_EINTERNAL, "ring area of rank %u is not one", r->rank);
    if (h->abi != EPD_ABI_VERSION)
        return epdc_fail(err, EPD_EVERSION,
                         "shared-memory ABI: libepd has %u, the ring has %u; "
                         "install one release on both sides",
                         EPD_ABI_VERSION, h->abi);
    return EPD_OK;
}

/* References to the newest status page and doorbell of the lease's device, in place of those held
 * until now. Lock held. */
static enum epd_status device_take(struct epd_lease *lease, uint64_t incarnation,
                                   struct epd_error *err)
{
    struct epd *epd = lease->epd;
    struct epdc_map *page = epdc_maps_get(&epd->maps, EPDC_MAP_STATUS, lease->device);
    struct epdc_map *bell = epdc_maps_get(&epd->maps, EPDC_MAP_DOORBELL, lease->device);
    enum epd_status status = EPD_EINTERNAL;
    if (!page || !bell) {
        (void)epdc_fail(err, status, "daemon granted no %s for device %u",
                        page ? "doorbell" : "status page", lease->device);
        goto err_put;
    }
    if (incarnation != 0 && epdc_map_incarnation(page) != incarnation) {
        (void)epdc_fail(err, status, "status page of device %u is of incarnation %llu, not %llu",
                        lease->device, (unsigned long long)epdc_map_incarnation(page),
                        (unsigned long long)incarnation);
        goto err_put;
    }
    epdc_map_put(lease->status);
    epdc_map_put(lease->doorbell);
    lease->status = page;
    lease->doorbell = bell;
    lease->page = epdc_map_page(page);
    lease->bell = bell->fd;
    return EPD_OK;

err_put:
    epdc_map_put(page);
    epdc_map_put(bell);
    return status;
}

static enum epd_status lease_fill(struct epd_lease *lease, const Epd__V1__LeaseReply *r,
                                  struct epd_error *err)
{
    lease->id = r->lease;
    lease->rank = r->rank;
    lease->device = r->device;
    lease->generation = r->generation;
    lease->owner = lease->epd->owner;
    enum epd_status status = epdc_session_redeem(lease->epd, r->grants, r->n_grants, err);
    if (status == EPD_OK)
        status = shape_take(lease, r->shape, err);
    if (status == EPD_OK)
        status = device_take(lease, r->incarnation, err);
    if (status == EPD_OK)
        status = ring_take(lease, r, err);
    return status;
}

static void release_at_daemon(struct epd_lease *lease)
{
    Epd__V1__Session session;
    Epd__V1__LeaseRequest req;
    lease_request(lease, &session, &req);
    /* A daemon that cannot be asked ends the lease with the session. */
    (void)epdc_session_call(lease->epd, &release_lease, &req.base, NULL, NULL);
}

/* The call and its reply. Lock held. */
static enum epd_status acquire(struct epd_lease *lease, const Epd__V1__AcquireLeaseRequest *req,
                               struct epd_error *err)
{
    ProtobufCMessage *reply = NULL;
    enum epd_status status = epdc_session_call(lease->epd, &acquire_lease, &req->base, &reply, err);
    if (status != EPD_OK)
        return status;
    status = lease_fill(lease, (const Epd__V1__LeaseReply *)(const void *)reply, err);
    epdc_reply_free(reply);
    if (status != EPD_OK)
        release_at_daemon(lease);
    return status;
}

enum epd_status epd_lease_acquire(struct epd *epd, uint64_t group, uint32_t rank,
                                  const struct epd_lease_options *options, struct epd_lease **out,
                                  struct epd_error *err)
{
    static const struct epd_lease_options defaults = EPD_LEASE_OPTIONS_INIT;
    const struct epd_lease_options *o = options ? options : &defaults;
    if (!epd || !out)
        return epdc_fail(err, EPD_EINVAL, "%s is NULL", epd ? "out" : "epd");
    if (o->size != sizeof(*o))
        return epdc_fail(err, EPD_EINVAL,
                         "epd_lease_options.size is %u, expected %zu: initialise "
                         "it with EPD_LEASE_OPTIONS_INIT",
                         o->size, sizeof(*o));
    enum epd_status status = epdc_session_usable(epd, err);
    if (status != EPD_OK)
        return status;

    Epd__V1__Session session;
    Epd__V1__AcquireLeaseRequest req = EPD__V1__ACQUIRE_LEASE_REQUEST__INIT;
    uint8_t key[EPDC_KEY_BYTES];
    epdc_session_message(epd, &session);
    req.session = &session;
    req.group = group;
    req.rank = rank;
    req.ring_depth = o->ring_depth;
    req.takeover = o->takeover != 0;
    if (o->key) {
        memcpy(key, o->key, sizeof(key));
        req.key = (ProtobufCBinaryData){.len = sizeof(key), .data = key};
    }
    struct epd_lease *lease = calloc(1, sizeof(*lease));
    if (!lease)
        return epdc_fail(err, EPD_ENOMEM, "no memory for a lease");
    lease->epd = epd;

    pthread_mutex_lock(&epd->lock);
    status = acquire(lease, &req, err);
    if (status == EPD_OK) {
        lease->next = epd->leases;
        epd->leases = lease;
        *out = lease;
    } else {
        epdc_lease_destroy(lease, false);
    }
    pthread_mutex_unlock(&epd->lock);
    return status;
}

void epdc_lease_destroy(struct epd_lease *lease, bool forked)
{
    while (lease->ops) {
        struct epd_op *op = lease->ops;
        lease->ops = op->next;
        epdc_op_destroy(op, forked);
    }
    if (!forked) {
        epdc_map_put(lease->ring);
        epdc_map_put(lease->status);
        epdc_map_put(lease->doorbell);
    }
    free(lease);
}

void epd_lease_release(struct epd_lease *lease)
{
    if (!lease)
        return;
    struct epd *epd = lease->epd;
    if (epdc_owner_forked(&lease->owner))
        return; /* epd_close frees it */

    pthread_mutex_lock(&epd->lock);
    if (epdc_session_lost(epd) == EPD_OK)
        release_at_daemon(lease);
    for (struct epd_lease **at = &epd->leases; *at; at = &(*at)->next) {
        if (*at == lease) {
            *at = lease->next;
            break;
        }
    }
    epdc_lease_destroy(lease, false);
    pthread_mutex_unlock(&epd->lock);
}

static enum epd_status rearm_take(struct epd_lease *lease, const Epd__V1__LeaseReply *r,
                                  struct epd_error *err)
{
    enum epd_status status = epdc_session_redeem(lease->epd, r->grants, r->n_grants, err);
    if (status == EPD_OK)
        status = device_take(lease, r->incarnation, err);
    if (status == EPD_OK)
        epdc_ring_rearm(lease, r->generation);
    return status;
}

enum epd_status epd_rearm(struct epd_lease *lease, struct epd_error *err)
{
    if (!lease)
        return epdc_fail(err, EPD_EINVAL, "lease is NULL");
    struct epd *epd = lease->epd;
    enum epd_status status = epdc_session_usable(epd, err);
    if (status != EPD_OK)
        return status;

    Epd__V1__Session session;
    Epd__V1__LeaseRequest req;
    ProtobufCMessage *reply = NULL;
    lease_request(lease, &session, &req);
    pthread_mutex_lock(&epd->lock);
    status = epdc_session_call(epd, &rearm, &req.base, &reply, err);
    if (status == EPD_OK) {
        status = rearm_take(lease, (const Epd__V1__LeaseReply *)(const void *)reply, err);
        epdc_reply_free(reply);
    }
    pthread_mutex_unlock(&epd->lock);
    return status;
}

uint32_t epd_lease_rank(const struct epd_lease *lease)
{
    return lease->rank;
}

uint32_t epd_lease_device(const struct epd_lease *lease)
{
    return lease->device;
}

uint32_t epd_lease_generation(const struct epd_lease *lease)
{
    return lease->generation;
}

uint64_t epd_lease_epoch(const struct epd_lease *lease)
{
    return lease->next_epoch;
}
