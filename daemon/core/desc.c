#include "daemon/core/desc.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/core/buffer.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/join.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"
#include "daemon/core/opdesc.h"
#include "proto/ring.h"

struct epd_desc {
    struct epd_msg_desc msg;                    /* as sent */
    struct epd_buffer *buffer[EPD_ARRAY_ROLES]; /* held; NULL: absent */
    bool bound;                                 /* the engine has it */
    bool clearing;                              /* DESC_CLEAR is on its way */
};

/* A call on its way. The lease may go meanwhile: it is looked up again. */
struct call {
    struct epd_core *core;
    uint64_t lease;
    struct epd_desc_id id;
    epd_desc_fn bound;
    epd_done_fn done;
    void *arg;
};

static void desc_free(struct epd_lease *lease, uint32_t index)
{
    struct epd_desc *desc = lease->desc[index];
    lease->desc[index] = NULL;
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++)
        if (desc->buffer[i] != NULL)
            epd_buffer_release(desc->buffer[i]);
    free(desc);
}

void epd_desc_drop_lease(struct epd_lease *lease)
{
    for (uint32_t i = 0; i < EPD_MAX_DESCS; i++)
        if (lease->desc[i] != NULL)
            desc_free(lease, i);
}

void epd_desc_replay(struct epd_lease *lease, struct epd_join *join)
{
    for (uint32_t i = 0; i < EPD_MAX_DESCS; i++)
        if (lease->desc[i] != NULL && lease->desc[i]->bound)
            epd_join_request(join, epd_lease_device_of(lease), &lease->desc[i]->msg.h, -1);
}

/* The descriptor of a call, or NULL when it or its lease has gone. */
static struct epd_desc *find(const struct call *c, struct epd_lease **lease_out)
{
    void *found;
    if (epd_handles_get(&c->core->leases, epd_handle_unpack(c->lease), &found, NULL) != EPD_OK)
        return NULL;
    *lease_out = found;
    struct epd_desc *desc = (*lease_out)->desc[c->id.index];
    return desc != NULL && desc->msg.desc_generation == c->id.generation ? desc : NULL;
}

/* ---- bind ---- */

static enum epd_status describe(struct epd_session *session, struct epd_lease *lease,
                                const struct epd_bind_request *r, struct epd_desc *desc,
                                struct epd_error *err)
{
    struct epd_opdesc op = {.kind = r->kind,
                            .ids_type = r->ids_type,
                            .sets = r->sets,
                            .device = lease->group->device[lease->rank]};
    if (r->n > EPD_ARRAY_ROLES)
        return epd_fail(err, EPD_EINVAL, "arrays: %zu given, there are %u roles", r->n,
                        (unsigned)EPD_ARRAY_ROLES);
    for (size_t i = 0; i < r->n; i++) {
        const struct epd_bind_array *a = &r->arrays[i];
        struct epd_buffer_view view;
        if (a->buffer == 0)
            continue;
        enum epd_status status = epd_buffer_get(session, a->buffer, &desc->buffer[i], err);
        if (status != EPD_OK) {
            (void)epd_fail_prefix(err, "arrays[%zu]", i);
            return status;
        }
        epd_buffer_look(desc->buffer[i], &view);
        op.array[i] = (struct epd_opdesc_array){
            .present = true,
            .chunk = view.chunk->id,
            .base = view.offset,
            .size = view.bytes,
            .device = view.device,
            .import = view.import,
            .offset = a->offset,
            .bytes = a->bytes,
            .stride = a->stride,
        };
    }
    return epd_opdesc_check(&lease->group->shape, &op, desc->msg.array, err);
}

static enum epd_status take_slot(struct epd_lease *lease, struct epd_desc_id *id_out,
                                 struct epd_error *err)
{
    for (uint32_t i = 0; i < EPD_MAX_DESCS; i++) {
        if (lease->desc[i] != NULL)
            continue;
        if (++lease->desc_generation[i] == 0)
            lease->desc_generation[i] = 1;
        *id_out = (struct epd_desc_id){.index = i, .generation = lease->desc_generation[i]};
        return EPD_OK;
    }
    return epd_fail(err, EPD_ELIMIT, "the seat has %u ops bound; unbind some", EPD_MAX_DESCS);
}

static void on_set(void *arg, const struct epd_link_reply *reply)
{
    struct call *c = arg;
    struct epd_lease *lease;
    struct epd_error err;
    struct epd_desc *desc = find(c, &lease);
    if (desc == NULL)
        (void)epd_fail(&err, EPD_ESTALE, "the lease has ended");
    else if (reply->err != NULL) {
        err = *reply->err;
        desc_free(lease, c->id.index);
    } else {
        desc->bound = true;
        c->bound(c->arg, c->id, NULL);
        free(c);
        return;
    }
    c->bound(c->arg, (struct epd_desc_id){0, 0}, &err);
    free(c);
}

static enum epd_status bind_op(struct epd_session *session, const struct epd_bind_request *r,
                               struct call *c, struct epd_error *err)
{
    struct epd_lease *lease;
    struct epd_desc *desc = epd_must_calloc(sizeof(*desc));
    enum epd_status status = epd_lease_get(session, r->lease, &lease, err);
    if (status == EPD_OK)
        status = describe(session, lease, r, desc, err);
    if (status == EPD_OK)
        status = take_slot(lease, &c->id, err);
    if (status != EPD_OK) {
        free(desc);
        return status;
    }
    struct epd_device *device = epd_lease_device_of(lease);
    struct epd_msg_desc *msg = &desc->msg;
    msg->h = (struct epd_msg_header){.type = EPD_MSG_DESC_SET, .bytes = sizeof(*msg)};
    msg->group = lease->group->id;
    msg->rank = lease->rank;
    msg->desc_index = c->id.index;
    msg->desc_generation = c->id.generation;
    msg->kind = r->kind;
    msg->ids_type = r->kind == EPD_OP_DISPATCH ? r->ids_type : 0;
    msg->sets = r->sets;
    if (!epd_known_to(device, lease->set_in) ||
        epd_device_request(device, &msg->h, NULL, 0, on_set, c) != EPD_OK) {
        free(desc);
        return epd_fail(err, EPD_EDEVICE, "device %u is %s; try again when it runs",
                        epd_device_index(device), epd_device_state_name(device));
    }
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++)
        if (desc->buffer[i] != NULL)
            epd_buffer_hold(desc->buffer[i]);
    lease->desc[c->id.index] = desc;
    return EPD_OK;
}

void epd_desc_bind(struct epd_session *session, const struct epd_bind_request *request,
                   epd_desc_fn fn, void *arg)
{
    struct epd_error err;
    struct call *c = epd_must_calloc(sizeof(*c));
    *c = (struct call){.core = session->core, .lease = request->lease, .bound = fn, .arg = arg};
    if (bind_op(session, request, c, &err) != EPD_OK) {
        fn(arg, (struct epd_desc_id){0, 0}, &err);
        free(c);
    }
}

/* ---- unbind ---- */

static void on_cleared(void *arg, const struct epd_link_reply *reply)
{
    struct call *c = arg;
    struct epd_lease *lease;
    struct epd_desc *desc = find(c, &lease);
    /* Gone with the engine: it is not replayed. Gone with the lease: that is what was asked. */
    const bool refused = reply->err != NULL && reply->msg != NULL;
    if (desc != NULL && refused)
        desc->clearing = false;
    else if (desc != NULL)
        desc_free(lease, c->id.index);
    c->done(c->arg, refused && desc != NULL ? reply->err : NULL);
    free(c);
}

static enum epd_status unbind_op(struct epd_session *session, struct call *c, bool *sent_out,
                                 struct epd_error *err)
{
    struct epd_lease *lease;
    enum epd_status status = epd_lease_get(session, c->lease, &lease, err);
    if (status != EPD_OK)
        return status;
    if (c->id.index >= EPD_MAX_DESCS)
        return epd_fail(err, EPD_ENOENT, "op %u does not exist", c->id.index);
    struct epd_desc *desc = find(c, &lease);
    if (desc == NULL || !desc->bound || desc->clearing)
        return epd_fail(err, EPD_ESTALE, "op %u.%u is not bound", c->id.index, c->id.generation);
    struct epd_device *device = epd_lease_device_of(lease);
    struct epd_msg_desc msg = desc->msg;
    msg.h.type = EPD_MSG_DESC_CLEAR;
    if (epd_known_to(device, lease->set_in) &&
        epd_device_request(device, &msg.h, NULL, 0, on_cleared, c) == EPD_OK) {
        desc->clearing = true;
        *sent_out = true;
    } else {
        desc_free(lease, c->id.index);
    }
    return EPD_OK;
}

void epd_desc_unbind(struct epd_session *session, uint64_t lease, struct epd_desc_id id,
                     epd_done_fn fn, void *arg)
{
    struct epd_error err;
    bool sent = false;
    struct call *c = epd_must_calloc(sizeof(*c));
    *c = (struct call){.core = session->core, .lease = lease, .id = id, .done = fn, .arg = arg};
    enum epd_status status = unbind_op(session, c, &sent, &err);
    if (sent)
        return;
    fn(arg, status == EPD_OK ? NULL : &err);
    free(c);
}
