/* libepd-rpc.so: blocking unary calls over gRPC C core. */
#include "client/rpc/rpc_internal.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOCKET_PATH_MAX 107u /* of sun_path */

/* gRPC talks on stderr about every refused connection; the caller gets errors as values. */
static void drop_log(gpr_log_func_args *args)
{
    (void)args;
}

static void init_once(void)
{
    gpr_set_log_function(drop_log);
    grpc_init(); /* kept for the life of the process: its threads may not be unloaded */
}

gpr_timespec epd_rpc_deadline(int64_t timeout_ns)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos(timeout_ns, GPR_TIMESPAN));
}

grpc_byte_buffer *epd_rpc_bytes(const uint8_t *data, size_t len)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)data, len);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

uint8_t *epd_rpc_copy(grpc_byte_buffer *buffer, size_t *len_out)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return NULL;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    const size_t len = GRPC_SLICE_LENGTH(all);
    uint8_t *copy = malloc(len + 1);
    if (copy != NULL)
        memcpy(copy, GRPC_SLICE_START_PTR(all), len);
    grpc_slice_unref(all);
    *len_out = len;
    return copy;
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* Nobody polls the channel between calls, but the daemon closes connections that were idle for
 * long: look before the next call is written to one that is gone. */
void epd_rpc_look(grpc_completion_queue *cq)
{
    for (unsigned i = 0; i < 4; i++) /* gRPC takes one event a turn */
        (void)grpc_completion_queue_pluck(cq, cq, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
}

/* "unix:" and the path as a URI has it: gRPC decodes %xx and stops at '?' and '#'. */
static int make_target(const char *path, char *target, size_t size)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-~";
    size_t n = (size_t)snprintf(target, size, "unix:");
    if (strlen(path) > SOCKET_PATH_MAX)
        return -1;
    for (; *path != 0 && n + 4 <= size; path++) {
        if (strchr(plain, *path) != NULL)
            target[n++] = *path;
        else
            n += (size_t)snprintf(target + n, size - n, "%%%02X", (unsigned char)*path);
    }
    target[n] = 0;
    return 0;
}

static int open_conn(const char *socket_path, struct epd_rpc_conn **out, char *errbuf,
                     size_t errlen)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, init_once);
    grpc_arg args[] = {
        int_arg("grpc.enable_http_proxy", 0),
        int_arg("grpc.service_config_disable_resolution", 1),
        /* Only of calls that no server has seen: there is no retry policy. */
        int_arg("grpc.enable_retries", 1),
        int_arg("grpc.use_local_subchannel_pool", 1),
        int_arg("grpc.initial_reconnect_backoff_ms", 50),
        /* Also the time that a connection may take: a busy machine must not look like no daemon. */
        int_arg("grpc.min_reconnect_backoff_ms", 10000),
        int_arg("grpc.max_reconnect_backoff_ms", 500),
        int_arg("grpc.max_receive_message_length", 16 << 20),
        int_arg("grpc.max_metadata_size", 64 << 10),
    };
    const grpc_channel_args channel_args = {sizeof(args) / sizeof(args[0]), args};
    char target[3 * SOCKET_PATH_MAX + 16];
    if (make_target(socket_path, target, sizeof(target)) != 0) {
        (void)snprintf(errbuf, errlen, "%.64s...: a socket path has at most %u bytes", socket_path,
                       SOCKET_PATH_MAX);
        return EPD_EINVAL;
    }
    struct epd_rpc_conn *conn = calloc(1, sizeof(*conn));
    if (conn == NULL) {
        (void)snprintf(errbuf, errlen, "no memory for a channel");
        return EPD_ENOMEM;
    }
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    conn->channel = grpc_channel_create(target, creds, &channel_args);
    grpc_channel_credentials_release(creds);
    *out = conn;
    return EPD_OK;
}

static void close_conn(struct epd_rpc_conn *conn)
{
    if (conn == NULL)
        return;
    grpc_channel_destroy(conn->channel);
    free(conn);
}

struct unary {
    grpc_completion_queue *cq;
    grpc_call *call;
    grpc_byte_buffer *request, *reply;
    grpc_metadata_array initial;
    struct epd_rpc_outcome outcome;
};

static void run_unary(struct unary *u)
{
    /* RECV_INITIAL_METADATA belongs to the batch: without it RECV_STATUS waits for the deadline. */
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = u->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &u->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &u->reply},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.status = &u->outcome.code,
                                        .status_details = &u->outcome.details,
                                        .trailing_metadata = &u->outcome.trailing}},
    };
    if (grpc_call_start_batch(u->call, ops, 6, u, NULL) != GRPC_CALL_OK) {
        u->outcome.code = GRPC_STATUS_INTERNAL;
        return;
    }
    (void)grpc_completion_queue_pluck(u->cq, u, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

static int unary(struct epd_rpc_conn *conn, const char *method, const uint8_t *req, size_t req_len,
                 int64_t timeout_ns, uint8_t **resp_out, size_t *resp_len_out, char *errbuf,
                 size_t errlen)
{
    struct unary u = {.cq = grpc_completion_queue_create_for_pluck(NULL),
                      .request = epd_rpc_bytes(req, req_len),
                      .outcome.details = grpc_empty_slice()};
    grpc_slice path = grpc_slice_from_copied_string(method);
    grpc_metadata_array_init(&u.initial);
    grpc_metadata_array_init(&u.outcome.trailing);
    epd_rpc_look(u.cq);
    u.call = grpc_channel_create_call(conn->channel, NULL, GRPC_PROPAGATE_DEFAULTS, u.cq, path,
                                      NULL, epd_rpc_deadline(timeout_ns), NULL);
    run_unary(&u);
    int status = epd_rpc_status(&u.outcome, errbuf, errlen);
    if (status == EPD_OK) {
        uint8_t *copy = u.reply != NULL ? epd_rpc_copy(u.reply, resp_len_out) : NULL;
        if (copy == NULL) {
            (void)snprintf(errbuf, errlen, "%s: empty answer, or no memory for it", method);
            status = EPD_EINTERNAL;
        } else
            *resp_out = copy;
    }
    grpc_slice_unref(u.outcome.details);
    grpc_metadata_array_destroy(&u.initial);
    grpc_metadata_array_destroy(&u.outcome.trailing);
    if (u.reply != NULL)
        grpc_byte_buffer_destroy(u.reply);
    grpc_byte_buffer_destroy(u.request);
    grpc_slice_unref(path);
    grpc_call_unref(u.call);
    grpc_completion_queue_shutdown(u.cq);
    (void)grpc_completion_queue_pluck(u.cq, NULL, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
    grpc_completion_queue_destroy(u.cq);
    return status;
}

__attribute__((visibility("default"))) const struct epd_rpc_table *epd_rpc_table_v1(void)
{
    static const struct epd_rpc_table table = {
        .abi = EPD_RPC_TABLE_ABI,
        .size = sizeof(struct epd_rpc_table),
        .open = open_conn,
        .close = close_conn,
        .unary = unary,
        .stream_open = epd_rpc_stream_open,
        .stream_next = epd_rpc_stream_next,
        .stream_close = epd_rpc_stream_close,
        .free_bytes = free,
    };
    return &table;
}
