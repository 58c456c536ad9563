#define EPD_LOG_COMPONENT "rpc"
#include "daemon/rpc/server_internal.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define ERROR_KEY "epd-error-bin"

/* ---- life ---- */

static void call_free(struct epd_rpc_call *c)
{
    struct epd_rpc_server *s = c->server;
    if (c->listed) {
        struct epd_rpc_call **at = &s->calls;
        while (*at != c)
            at = &(*at)->link;
        *at = c->link;
    }
    if (c->uid != NULL)
        c->uid->calls--;
    epd_rpc_stream_drop_queue(c);
    if (c->payload != NULL)
        grpc_byte_buffer_destroy(c->payload);
    grpc_metadata_array_destroy(&c->metadata);
    if (c->registered == NULL)
        grpc_call_details_destroy(&c->details);
    grpc_slice_unref(c->status_text);
    grpc_slice_unref(c->error_bytes);
    if (c->call != NULL)
        grpc_call_unref(c->call);
    free(c);
}

void epd_rpc_call_ref(struct epd_rpc_call *call)
{
    call->refs++;
}

void epd_rpc_call_unref(struct epd_rpc_call *call)
{
    if (--call->refs == 0)
        call_free(call);
}

void epd_rpc_start_batch(struct epd_rpc_call *call, const grpc_op *ops, size_t n,
                         struct epd_rpc_tag *tag)
{
    epd_rpc_call_ref(call);
    EPD_TSAN_RELEASE(tag);
    const grpc_call_error e = grpc_call_start_batch(call->call, ops, n, tag, NULL);
    if (e != GRPC_CALL_OK) { /* a wrong sequence of ours: the call is lost, the server is not */
        log_error("start_batch: %s", grpc_call_error_to_string(e));
        epd_rpc_call_unref(call);
    }
}

void epd_rpc_start_send(struct epd_rpc_call *call, const grpc_op *ops, size_t n,
                        void (*fn)(void *obj, bool ok))
{
    call->send_tag = (struct epd_rpc_tag){.fn = fn, .obj = call};
    call->sending = true;
    call->send_started_ms = uv_now(call->server->loop);
    epd_rpc_start_batch(call, ops, n, &call->send_tag);
}

/* ---- answers ---- */

static size_t put_varint(uint8_t *to, uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        to[n++] = (uint8_t)(value | 0x80);
    to[n++] = (uint8_t)value;
    return n;
}

/* epd.v1.Error {sint32 status = 1; string message = 2}, by hand: this file knows no messages. */
static grpc_slice pack_error(enum epd_status status, const char *message)
{
    const size_t len = strlen(message);
    uint8_t head[32];
    size_t n = 0;
    head[n++] = 1u << 3;
    n += put_varint(head + n, (uint32_t)status << 1 ^ (uint32_t)((int32_t)status >> 31));
    head[n++] = 2u << 3 | 2u;
    n += put_varint(head + n, len);
    grpc_slice slice = grpc_slice_malloc(n + len);
    memcpy(GRPC_SLICE_START_PTR(slice), head, n);
    memcpy(GRPC_SLICE_START_PTR(slice) + n, message, len);
    return slice;
}

void epd_rpc_call_set_status(struct epd_rpc_call *call, enum epd_status status, const char *message)
{
    call->code = (grpc_status_code)epd_status_grpc(status);
    if (status == EPD_OK)
        return;
    grpc_slice_unref(call->status_text);
    grpc_slice_unref(call->error_bytes);
    call->status_text = grpc_slice_from_copied_string(message);
    call->error_bytes = pack_error(status, message);
}

grpc_op epd_rpc_status_op(struct epd_rpc_call *call, grpc_metadata *trailer)
{
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.status = call->code;
    op.data.send_status_from_server.status_details = &call->status_text;
    if (call->code != GRPC_STATUS_OK && GRPC_SLICE_LENGTH(call->error_bytes) > 0) {
        memset(trailer, 0, sizeof(*trailer));
        trailer->key = grpc_slice_from_static_string(ERROR_KEY);
        trailer->value = call->error_bytes;
        op.data.send_status_from_server.trailing_metadata = trailer;
        op.data.send_status_from_server.trailing_metadata_count = 1;
    }
    return op;
}

static void on_sent(void *obj, bool ok)
{
    struct epd_rpc_call *c = obj;
    (void)ok; /* the client is gone: nothing to tell it */
    c->sending = false;
    epd_rpc_call_unref(c);
}

static bool begin_answer(struct epd_rpc_call *call)
{
    if (call->answered)
        return false;
    call->answered = true;
    call->cancel_cb = NULL;
    return !call->closed;
}

void epd_rpc_call_reply(struct epd_rpc_call *call, const uint8_t *msg, size_t len)
{
    if (!begin_answer(call))
        return;
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)msg, len);
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_metadata trailer;
    call->code = GRPC_STATUS_OK;
    const grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes},
        epd_rpc_status_op(call, &trailer),
    };
    epd_rpc_start_send(call, ops, 3, on_sent);
    grpc_byte_buffer_destroy(bytes);
}

void epd_rpc_call_fail(struct epd_rpc_call *call, enum epd_status status, const char *message)
{
    if (call->registered != NULL && call->registered->method->kind == EPD_RPC_STREAM) {
        epd_rpc_call_finish(call, status, message);
        return;
    }
    if (!begin_answer(call))
        return;
    grpc_metadata trailer;
    epd_rpc_call_set_status(call, status == EPD_OK ? EPD_EINTERNAL : status, message);
    const grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                           epd_rpc_status_op(call, &trailer)};
    epd_rpc_start_send(call, ops, 2, on_sent);
}

/* ---- arrival ---- */

static void on_closed(void *obj, bool ok)
{
    struct epd_rpc_call *c = obj;
    (void)ok;
    c->closed = true;
    void (*cb)(void *) = c->cancel_cb;
    c->cancel_cb = NULL;
    if (cb != NULL && !c->answered)
        cb(c->cancel_ctx);
    epd_rpc_stream_drop_queue(c);
    epd_rpc_call_unref(c);
}

static bool admit(struct epd_rpc_call *c)
{
    if (c->registered == NULL) {
        epd_rpc_call_fail(c, EPD_EUNSUPPORTED, "unknown method");
        return false;
    }
    if (!epd_rpc_conn_identify(c) && !c->registered->method->is_public) {
        epd_rpc_call_fail(c, EPD_EPERM, "this method needs a connection to the unix socket");
        return false;
    }
    c->uid = epd_rpc_uid_get(c->server, c->peer.uid);
    if (c->uid != NULL && ++c->uid->calls > EPD_RPC_CALLS_PER_UID) {
        epd_rpc_call_fail(c, EPD_ELIMIT, "more than 256 calls of this user are in progress");
        return false;
    }
    if (c->server->draining) {
        epd_rpc_call_fail(c, EPD_EDRAINING, "the daemon is draining");
        return false;
    }
    if (c->payload == NULL) {
        epd_rpc_call_fail(c, EPD_EINVAL, "the call carries no message");
        return false;
    }
    return true;
}

static void dispatch(struct epd_rpc_call *c)
{
    grpc_byte_buffer_reader reader;
    if (!admit(c))
        return;
    if (!grpc_byte_buffer_reader_init(&reader, c->payload)) {
        epd_rpc_call_fail(c, EPD_EINVAL, "the message cannot be decompressed");
        return;
    }
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    const struct epd_rpc_method *m = c->registered->method;
    m->handle(c, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all), m->ctx);
    grpc_slice_unref(all);
}

static void on_arrived(void *obj, bool ok)
{
    struct epd_rpc_call *c = obj;
    struct epd_rpc_server *s = c->server;
    if (!ok) { /* shutting down */
        epd_rpc_call_unref(c);
        return;
    }
    epd_rpc_call_request(s, c->registered);
    c->listed = true;
    c->link = s->calls;
    s->calls = c;
    const grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                           .data.recv_close_on_server.cancelled = &c->cancelled};
    c->close_tag = (struct epd_rpc_tag){.fn = on_closed, .obj = c};
    epd_rpc_start_batch(c, &close, 1, &c->close_tag);
    dispatch(c);
    epd_rpc_call_unref(c);
}

void epd_rpc_call_request(struct epd_rpc_server *server,
                          const struct epd_rpc_registered *registered)
{
    if (server->draining)
        return;
    struct epd_rpc_call *c = calloc(1, sizeof(*c));
    if (c == NULL) {
        log_error("no memory for a call: fewer calls are served at once from now on");
        return;
    }
    c->server = server;
    c->registered = registered;
    c->refs = 1;
    c->status_text = c->error_bytes = grpc_empty_slice();
    c->peer = (struct epd_peer){.uid = (uid_t)-1, .gid = (gid_t)-1};
    c->request_tag = (struct epd_rpc_tag){.fn = on_arrived, .obj = c};
    grpc_metadata_array_init(&c->metadata);
    EPD_TSAN_RELEASE(&c->request_tag);
    grpc_call_error e;
    if (registered != NULL) {
        e = grpc_server_request_registered_call(server->server, registered->handle, &c->call,
                                                &c->deadline, &c->metadata, &c->payload, server->cq,
                                                server->cq, &c->request_tag);
    } else {
        grpc_call_details_init(&c->details);
        e = grpc_server_request_call(server->server, &c->call, &c->details, &c->metadata,
                                     server->cq, server->cq, &c->request_tag);
    }
    if (e != GRPC_CALL_OK)
        call_free(c);
}

/* ---- questions ---- */

const struct epd_peer *epd_rpc_call_peer(const struct epd_rpc_call *call)
{
    return &call->peer;
}

uint64_t epd_rpc_call_deadline_ns(const struct epd_rpc_call *call)
{
    if (gpr_time_cmp(call->deadline, gpr_inf_future(call->deadline.clock_type)) == 0)
        return UINT64_MAX;
    const gpr_timespec t = gpr_convert_clock_type(call->deadline, GPR_CLOCK_MONOTONIC);
    return t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void epd_rpc_call_on_cancel(struct epd_rpc_call *call, void (*cb)(void *ctx), void *ctx)
{
    call->cancel_cb = cb;
    call->cancel_ctx = ctx;
}
