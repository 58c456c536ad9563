#define EPD_LOG_COMPONENT "rpc"
#include "daemon/rpc/server_internal.h"

#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/rpc/guard.h"

#define REQUESTS_A_METHOD 16u /* calls of one method that may arrive before the loop looks */

/* ---- from gRPC's queue to the loop ---- */

static void post(struct epd_rpc_server *s, struct epd_rpc_tag *tag)
{
    (void)pthread_mutex_lock(&s->mutex);
    const bool first = s->head == NULL;
    if (tag == NULL)
        s->thread_ended = true;
    else {
        tag->next = NULL;
        if (s->tail != NULL)
            s->tail->next = tag;
        else
            s->head = tag;
        s->tail = tag;
    }
    /* Under the mutex: the handle is closed only after the loop has seen thread_ended. */
    if (first || tag == NULL)
        (void)uv_async_send(&s->async);
    (void)pthread_mutex_unlock(&s->mutex);
}

static void *queue_main(void *arg)
{
    struct epd_rpc_server *s = arg;
    for (;;) {
        grpc_event e = grpc_completion_queue_next(s->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (e.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (e.type != GRPC_OP_COMPLETE)
            continue;
        struct epd_rpc_tag *tag = e.tag;
        EPD_TSAN_ACQUIRE(tag);
        tag->ok = e.success != 0;
        post(s, tag);
    }
    post(s, NULL);
    return NULL;
}

static void stopped(struct epd_rpc_server *s)
{
    (void)pthread_join(s->thread, NULL);
    s->started = false;
    s->stopped = true;
    if (s->done != NULL)
        s->done(s->done_ctx);
}

static void on_async(uv_async_t *async)
{
    struct epd_rpc_server *s = async->data;
    for (;;) {
        (void)pthread_mutex_lock(&s->mutex);
        struct epd_rpc_tag *tag = s->head;
        s->head = s->tail = NULL;
        const bool ended = s->thread_ended;
        (void)pthread_mutex_unlock(&s->mutex);
        if (tag == NULL) {
            if (ended && !s->stopped)
                stopped(s);
            return;
        }
        while (tag != NULL) {
            struct epd_rpc_tag *next = tag->next;
            tag->fn(tag->obj, tag->ok);
            tag = next;
        }
    }
}

/* ---- stalled readers ---- */

static void on_second(uv_timer_t *timer)
{
    struct epd_rpc_server *s = timer->data;
    const uint64_t now = uv_now(s->loop);
    for (struct epd_rpc_call *c = s->calls; c != NULL; c = c->link)
        if (c->sending && now - c->send_started_ms > EPD_RPC_STALL_MS)
            epd_rpc_conn_shutdown(s, c->conn_id);
}

/* ---- start ---- */

/* gRPC logs every broken frame of a peer as an error; that is the peer's business. */
static void grpc_log(gpr_log_func_args *args)
{
    static struct epd_log_limit limit;
    unsigned dropped;
    if (epd_log_get_level() >= EPD_LOG_DEBUG && epd_log_limit_pass(&limit, 100, &dropped))
        epd_log_write(EPD_LOG_DEBUG, "grpc", "%s", args->message);
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_server *create_server(const struct epd_rpc_options *options)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("epd");
    grpc_resource_quota_resize(quota, 64u << 20);
    grpc_arg args[] = {
        int_arg("grpc.max_receive_message_length", (int)EPD_RPC_MESSAGE_MAX),
        int_arg("grpc.max_metadata_size", 64 << 10),
        int_arg("grpc.max_concurrent_streams", 512),
        int_arg("grpc.keepalive_time_ms", 30000),
        int_arg("grpc.keepalive_timeout_ms", 5000),
        int_arg("grpc.keepalive_permit_without_calls", 1),
        int_arg("grpc.max_connection_idle_ms", (int)options->idle_ms),
        int_arg("grpc.so_reuseport", 0),
        int_arg("grpc.enable_channelz", 0),
        /* It would allow clients longer frames, for which the guard cuts them off. */
        int_arg("grpc.http2.bdp_probe", 0),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t) "grpc.resource_quota",
         .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}},
    };
    const grpc_channel_args channel_args = {EPD_ARRAY_LEN(args), args};
    grpc_server *server = grpc_server_create(&channel_args, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static enum epd_status listen_tcp(struct epd_rpc_server *s, struct epd_error *err)
{
    if (s->options.tcp_address == NULL || s->options.tcp_address[0] == 0)
        return EPD_OK;
    grpc_server_credentials *creds = grpc_insecure_server_credentials_create();
    const int port = grpc_server_add_http2_port(s->server, s->options.tcp_address, creds);
    grpc_server_credentials_release(creds);
    return port != 0
               ? EPD_OK
               : epd_fail(err, EPD_ESYS, "health_tcp: cannot listen on %s", s->options.tcp_address);
}

static enum epd_status register_methods(struct epd_rpc_server *s, struct epd_error *err)
{
    const struct epd_rpc_method *m = s->options.methods;
    for (unsigned i = 0; i < s->options.n_methods; i++) {
        void *handle = grpc_server_register_method(s->server, m[i].path, NULL,
                                                   GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (handle == NULL)
            return epd_fail(err, EPD_EINTERNAL, "method %s cannot be registered", m[i].path);
        s->registered[i] = (struct epd_rpc_registered){&m[i], handle};
    }
    return EPD_OK;
}

static enum epd_status start(struct epd_rpc_server *s, struct epd_error *err)
{
    enum epd_status status = register_methods(s, err);
    if (status == EPD_OK)
        status = listen_tcp(s, err);
    if (status == EPD_OK && s->options.frame_guard)
        status = epd_guard_create(&s->guard, err);
    if (status != EPD_OK)
        return status;
    grpc_server_start(s->server);
    if (pthread_create(&s->thread, NULL, queue_main, s) != 0)
        return epd_fail(err, EPD_ELIMIT, "cannot start the thread of gRPC's queue");
    s->started = true;
    for (unsigned i = 0; i < s->options.n_methods; i++)
        for (unsigned k = 0; k < REQUESTS_A_METHOD; k++)
            epd_rpc_call_request(s, &s->registered[i]);
    epd_rpc_call_request(s, NULL);
    return EPD_OK;
}

static void init_handles(struct epd_rpc_server *s)
{
    /* These cannot fail but for lack of an eventfd, which the loop has made already. */
    (void)uv_async_init(s->loop, &s->async, on_async);
    (void)uv_timer_init(s->loop, &s->timer);
    (void)uv_timer_init(s->loop, &s->grace_timer);
    s->async.data = s->timer.data = s->grace_timer.data = s;
    s->open_handles = 3;
    (void)uv_timer_start(&s->timer, on_second, 1000, 1000);
    uv_unref((uv_handle_t *)&s->timer);
}

enum epd_status epd_rpc_server_create(uv_loop_t *loop, const struct epd_rpc_options *options,
                                      struct epd_rpc_server **out, struct epd_error *err)
{
    struct epd_rpc_server *s = calloc(1, sizeof(*s));
    struct epd_rpc_registered *registered = calloc(options->n_methods + 1, sizeof(*registered));
    if (s == NULL || registered == NULL) {
        free(s);
        free(registered);
        return epd_fail(err, EPD_ENOMEM, "no memory for the gRPC server");
    }
    s->loop = loop;
    s->options = *options;
    s->registered = registered;
    (void)pthread_mutex_init(&s->mutex, NULL);
    gpr_set_log_function(grpc_log);
    grpc_init();
    init_handles(s);
    s->server = create_server(options);
    s->cq = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(s->server, s->cq, NULL);
    enum epd_status status = start(s, err);
    if (status != EPD_OK) {
        epd_rpc_server_destroy(s);
        return status;
    }
    *out = s;
    return EPD_OK;
}

/* ---- end ---- */

static void on_shutdown(void *obj, bool ok)
{
    struct epd_rpc_server *s = obj;
    (void)ok;
    (void)uv_timer_stop(&s->grace_timer);
    epd_rpc_conn_close_all(s);
    grpc_completion_queue_shutdown(s->cq);
}

static void on_grace(uv_timer_t *timer)
{
    struct epd_rpc_server *s = timer->data;
    grpc_server_cancel_all_calls(s->server);
}

void epd_rpc_server_drain(struct epd_rpc_server *s, uint64_t grace_ms, void (*done)(void *ctx),
                          void *ctx)
{
    s->draining = true;
    s->done = done;
    s->done_ctx = ctx;
    for (struct epd_rpc_call *c = s->calls, *next; c != NULL; c = next) {
        next = c->link;
        if (c->registered == NULL || c->registered->method->kind != EPD_RPC_STREAM)
            continue;
        void (*cancel)(void *) = c->cancel_cb; /* its owner holds a reference: let it go */
        epd_rpc_call_finish(c, EPD_EDRAINING, "the daemon is draining");
        if (cancel != NULL)
            cancel(c->cancel_ctx);
    }
    s->shutdown_tag = (struct epd_rpc_tag){.fn = on_shutdown, .obj = s};
    EPD_TSAN_RELEASE(&s->shutdown_tag);
    grpc_server_shutdown_and_notify(s->server, s->cq, &s->shutdown_tag);
    (void)uv_timer_start(&s->grace_timer, on_grace, grace_ms, 0);
}

void epd_rpc_handle_closed(struct epd_rpc_server *s)
{
    if (--s->open_handles > 0)
        return;
    while (s->uids != NULL) {
        struct epd_rpc_uid *u = s->uids;
        s->uids = u->link;
        free(u);
    }
    (void)pthread_mutex_destroy(&s->mutex);
    free(s->registered);
    free(s);
}

static void on_handle_closed(uv_handle_t *handle)
{
    epd_rpc_handle_closed(handle->data);
}

void epd_rpc_server_destroy(struct epd_rpc_server *s)
{
    if (s == NULL)
        return;
    epd_assert(!s->started); /* drained first */
    epd_guard_destroy(s->guard);
    if (!s->stopped) { /* never started: gRPC wants its shutdown all the same */
        grpc_server_shutdown_and_notify(s->server, s->cq, NULL);
        grpc_completion_queue_shutdown(s->cq);
        while (grpc_completion_queue_next(s->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
               GRPC_QUEUE_SHUTDOWN) {
        }
    }
    grpc_server_destroy(s->server);
    grpc_completion_queue_destroy(s->cq);
    grpc_shutdown_blocking();
    uv_close((uv_handle_t *)&s->async, on_handle_closed);
    uv_close((uv_handle_t *)&s->timer, on_handle_closed);
    uv_close((uv_handle_t *)&s->grace_timer, on_handle_closed);
}
