/* AllocBuffer, ImportBuffer, FreeBuffer, BindOp, UnbindOp. */
#include "daemon/core/buffer.h"

#include "daemon/base/util.h"
#include "daemon/core/desc.h"
#include "daemon/rpc/control_wire.h"

static void on_buffer(void *arg, const struct epd_buffer_info *info, const struct epd_error *err)
{
    struct epd_pending *p = arg;
    Epd__V1__BufferReply reply = EPD__V1__BUFFER_REPLY__INIT;
    Epd__V1__FdGrant grant[EPD_ARRAY_LEN(info->grants)], *grants[EPD_ARRAY_LEN(info->grants)];
    if (err != NULL) {
        epd_pending_fail(p, err);
        return;
    }
    epd_wire_grants_out(info->grants, info->n_grants, grant, grants);
    reply.buffer = info->buffer;
    reply.chunk = info->chunk;
    reply.offset = info->offset;
    reply.bytes = info->bytes;
    reply.n_grants = info->n_grants;
    reply.grants = grants;
    if (info->has_token) /* only read while packing */
        reply.token = (ProtobufCBinaryData){sizeof(info->token), (uint8_t *)(uintptr_t)info->token};
    epd_pending_reply(p, &reply.base);
}

void epd_control_alloc_buffer(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__AllocBufferRequest *r =
        epd_wire_parse(call, &epd__v1__alloc_buffer_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL)
        epd_buffer_create(session, r->device, r->bytes, on_buffer,
                          epd_pending_create(control, call));
    epd_wire_free(r);
}

void epd_control_import_buffer(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__ImportBufferRequest *r =
        epd_wire_parse(call, &epd__v1__import_buffer_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        const struct epd_import_request request = {.device = r->device,
                                                   .bytes = r->bytes,
                                                   .token = r->token.data,
                                                   .token_len = r->token.len};
        epd_buffer_import(session, &request, on_buffer, epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

void epd_control_free_buffer(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    const Epd__V1__Empty empty = EPD__V1__EMPTY__INIT;
    struct epd_error err;
    Epd__V1__FreeBufferRequest *r =
        epd_wire_parse(call, &epd__v1__free_buffer_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        if (epd_buffer_free(session, r->buffer, &err) == EPD_OK)
            epd_wire_reply(call, &empty.base);
        else
            epd_wire_fail(call, &err);
    }
    epd_wire_free(r);
}

/* ---- ops ---- */

static void on_bound(void *arg, struct epd_desc_id id, const struct epd_error *err)
{
    struct epd_pending *p = arg;
    Epd__V1__BindOpReply reply = EPD__V1__BIND_OP_REPLY__INIT;
    if (err != NULL) {
        epd_pending_fail(p, err);
        return;
    }
    reply.desc_index = id.index;
    reply.desc_generation = id.generation;
    epd_pending_reply(p, &reply.base);
}

void epd_control_bind_op(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    struct epd_bind_array arrays[EPD_ARRAY_ROLES] = {{0}};
    Epd__V1__BindOpRequest *r =
        epd_wire_parse(call, &epd__v1__bind_op_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    for (size_t i = 0; i < r->n_arrays && i < EPD_ARRAY_ROLES; i++)
        arrays[i] = (struct epd_bind_array){
            .buffer = r->arrays[i]->buffer,
            .offset = r->arrays[i]->offset,
            .bytes = r->arrays[i]->bytes,
            .stride = r->arrays[i]->stride,
        };
    if (session != NULL) {
        const struct epd_bind_request request = {.lease = r->lease,
                                                 .kind = r->kind,
                                                 .ids_type = r->ids_type,
                                                 .sets = r->sets,
                                                 .arrays = arrays,
                                                 .n = r->n_arrays};
        epd_desc_bind(session, &request, on_bound, epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

void epd_control_unbind_op(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__UnbindOpRequest *r =
        epd_wire_parse(call, &epd__v1__unbind_op_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        const struct epd_desc_id id = {r->desc_index, r->desc_generation};
        epd_desc_unbind(session, r->lease, id, epd_pending_done, epd_pending_create(control, call));
    }
    epd_wire_free(r);
}
