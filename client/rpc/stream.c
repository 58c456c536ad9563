#include "client/rpc/rpc_internal.h"

#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>

/* One server stream: the request goes out at once; a message is asked for by stream_next, and stays
 * asked for when that runs out of time. Tags on the pluck queue are addresses inside the struct. */
struct epd_rpc_stream {
    grpc_completion_queue *cq;
    grpc_call *call;
    grpc_byte_buffer *request, *message;
    grpc_metadata_array initial;
    struct epd_rpc_outcome outcome;
    char start_tag, status_tag, read_tag;
    int started, reading;
};

static gpr_timespec forever(void)
{
    return gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

int epd_rpc_stream_open(struct epd_rpc_conn *conn, const char *method, const uint8_t *req,
                        size_t req_len, struct epd_rpc_stream **out, char *errbuf, size_t errlen)
{
    struct epd_rpc_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        (void)snprintf(errbuf, errlen, "no memory for a stream");
        return EPD_ENOMEM;
    }
    grpc_slice path = grpc_slice_from_copied_string(method);
    s->cq = grpc_completion_queue_create_for_pluck(NULL);
    s->request = epd_rpc_bytes(req, req_len);
    s->outcome.details = grpc_empty_slice();
    grpc_metadata_array_init(&s->initial);
    grpc_metadata_array_init(&s->outcome.trailing);
    epd_rpc_look(s->cq);
    s->call = grpc_channel_create_call(conn->channel, NULL, GRPC_PROPAGATE_DEFAULTS, s->cq, path,
                                       NULL, forever(), NULL);
    grpc_slice_unref(path);
    const grpc_op start[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = s->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &s->initial},
    };
    const grpc_op status = {
        .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
        .data.recv_status_on_client = {.status = &s->outcome.code,
                                       .status_details = &s->outcome.details,
                                       .trailing_metadata = &s->outcome.trailing}};
    (void)grpc_call_start_batch(s->call, start, 4, &s->start_tag, NULL);
    (void)grpc_call_start_batch(s->call, &status, 1, &s->status_tag, NULL);
    *out = s;
    return EPD_OK;
}

/* The call is over: wait for its status. */
static int finished(struct epd_rpc_stream *s, char *errbuf, size_t errlen)
{
    (void)grpc_completion_queue_pluck(s->cq, &s->status_tag, forever(), NULL);
    const int status = epd_rpc_status(&s->outcome, errbuf, errlen);
    if (status == EPD_OK)
        (void)snprintf(errbuf, errlen, "the stream has ended");
    s->started = -1; /* status taken */
    return status == EPD_OK ? EPD_ECANCELED : status;
}

int epd_rpc_stream_next(struct epd_rpc_stream *s, int64_t timeout_ns, uint8_t **msg_out,
                        size_t *len_out, char *errbuf, size_t errlen)
{
    if (s->started < 0) {
        (void)snprintf(errbuf, errlen, "the stream has ended");
        return EPD_ECANCELED;
    }
    if (!s->reading) {
        const grpc_op read = {.op = GRPC_OP_RECV_MESSAGE,
                              .data.recv_message.recv_message = &s->message};
        (void)grpc_call_start_batch(s->call, &read, 1, &s->read_tag, NULL);
        s->reading = 1;
    }
    const grpc_event e =
        grpc_completion_queue_pluck(s->cq, &s->read_tag, epd_rpc_deadline(timeout_ns), NULL);
    if (e.type == GRPC_QUEUE_TIMEOUT) {
        (void)snprintf(errbuf, errlen, "no message within the timeout");
        return EPD_ETIMEDOUT;
    }
    s->reading = 0;
    if (s->message == NULL)
        return finished(s, errbuf, errlen);
    uint8_t *copy = epd_rpc_copy(s->message, len_out);
    grpc_byte_buffer_destroy(s->message);
    s->message = NULL;
    if (copy == NULL) {
        (void)snprintf(errbuf, errlen, "no memory for a message");
        return EPD_ENOMEM;
    }
    *msg_out = copy;
    return EPD_OK;
}

void epd_rpc_stream_close(struct epd_rpc_stream *s)
{
    if (s == NULL)
        return;
    (void)grpc_call_cancel(s->call, NULL);
    (void)grpc_completion_queue_pluck(s->cq, &s->start_tag, forever(), NULL);
    if (s->reading)
        (void)grpc_completion_queue_pluck(s->cq, &s->read_tag, forever(), NULL);
    if (s->started >= 0)
        (void)grpc_completion_queue_pluck(s->cq, &s->status_tag, forever(), NULL);
    if (s->message != NULL)
        grpc_byte_buffer_destroy(s->message);
    grpc_byte_buffer_destroy(s->request);
    grpc_slice_unref(s->outcome.details);
    grpc_metadata_array_destroy(&s->initial);
    grpc_metadata_array_destroy(&s->outcome.trailing);
    grpc_call_unref(s->call);
    grpc_completion_queue_shutdown(s->cq);
    grpc_completion_queue_destroy(s->cq);
    free(s);
}
