#include "daemon/rpc/server_internal.h"

#include <grpc/slice.h>
#include <stdlib.h>

/* A stream sends one message at a time, as gRPC wants it; the rest waits here. A send ends when
 * gRPC has buffered it, which a reader that takes nothing holds up: that is the back-pressure. */

void epd_rpc_stream_drop_queue(struct epd_rpc_call *call)
{
    while (call->first != NULL) {
        struct epd_rpc_message *m = call->first;
        call->first = m->next;
        grpc_byte_buffer_destroy(m->bytes);
        free(m);
    }
    call->last = NULL;
    call->queued = 0;
}

static void on_sent(void *obj, bool ok)
{
    struct epd_rpc_call *c = obj;
    c->sending = false;
    if (ok)
        epd_rpc_stream_pump(c);
    else
        epd_rpc_stream_drop_queue(c);
    epd_rpc_call_unref(c);
}

static void on_finished(void *obj, bool ok)
{
    struct epd_rpc_call *c = obj;
    (void)ok;
    c->sending = false;
    epd_rpc_call_unref(c);
}

static void send_status(struct epd_rpc_call *c)
{
    grpc_op ops[2];
    size_t n = 0;
    grpc_metadata trailer;
    if (!c->sent_metadata)
        ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[n++] = epd_rpc_status_op(c, &trailer);
    c->sent_metadata = true;
    c->finishing = false;
    epd_rpc_start_send(c, ops, n, on_finished);
}

void epd_rpc_stream_pump(struct epd_rpc_call *c)
{
    if (c->sending || c->closed)
        return;
    if (c->first == NULL) {
        if (c->finishing)
            send_status(c);
        return;
    }
    struct epd_rpc_message *m = c->first;
    c->first = m->next;
    if (c->first == NULL)
        c->last = NULL;
    c->queued--;
    grpc_op ops[2];
    size_t n = 0;
    if (!c->sent_metadata)
        ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[n++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = m->bytes};
    c->sent_metadata = true;
    epd_rpc_start_send(c, ops, n, on_sent);
    grpc_byte_buffer_destroy(m->bytes);
    free(m);
}

enum epd_status epd_rpc_call_send(struct epd_rpc_call *call, const uint8_t *msg, size_t len)
{
    if (call->closed || call->answered)
        return EPD_ECANCELED;
    if (call->queued >= EPD_RPC_QUEUE_MAX) {
        epd_rpc_conn_shutdown(call->server, call->conn_id);
        return EPD_ELIMIT;
    }
    struct epd_rpc_message *m = malloc(sizeof(*m));
    if (m == NULL)
        return EPD_ENOMEM;
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)msg, len);
    *m = (struct epd_rpc_message){.bytes = grpc_raw_byte_buffer_create(&slice, 1)};
    grpc_slice_unref(slice);
    if (call->last != NULL)
        call->last->next = m;
    else
        call->first = m;
    call->last = m;
    call->queued++;
    epd_rpc_stream_pump(call);
    return EPD_OK;
}

void epd_rpc_call_finish(struct epd_rpc_call *call, enum epd_status status, const char *message)
{
    if (call->answered)
        return;
    call->answered = true;
    call->cancel_cb = NULL;
    epd_rpc_call_set_status(call, status, message);
    call->finishing = true;
    epd_rpc_stream_pump(call);
}
