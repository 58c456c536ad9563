/* The gRPC server on a loop in a thread. Functions are static inline so that a test is one file. */
#ifndef EPD_TEST_RPC_WORLD_H
#define EPD_TEST_RPC_WORLD_H

#include <fcntl.h>

#include "daemon/base/util.h"
#include "daemon/ipc/peer.h"
#include "tests/unit/rpc/world_methods.h"

static inline void on_accept(uv_poll_t *poll, int status, int events)
{
    struct world *w = poll->data;
    struct epd_peer peer;
    struct epd_error err;
    (void)status, (void)events;
    const int fd = accept4(w->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    assert_int_equal(epd_peer_of_socket(fd, &peer, &err), EPD_OK);
    epd_close_fd(&w->last_fd);
    w->last_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (epd_rpc_server_add_connection(w->server, fd, &peer, &err) == EPD_OK)
        return;
    epd_close_fd(&w->last_fd);
    count_up(&w->refused, 1);
}
static inline void on_wake(uv_async_t *async)
{
    struct world *w = async->data;
    (void)pthread_mutex_lock(&w->mutex);
    if (w->busy) {
        w->job(w);
        w->connections = w->server != NULL ? epd_rpc_server_connections(w->server) : 0;
        w->busy = false;
        (void)pthread_cond_signal(&w->asked);
    }
    (void)pthread_mutex_unlock(&w->mutex);
}
/* Run job on the loop and wait for it. */
static inline void world_do(struct world *w, void (*job)(struct world *w))
{
    (void)pthread_mutex_lock(&w->mutex);
    w->job = job;
    w->busy = true;
    (void)uv_async_send(&w->wake);
    while (w->busy)
        (void)pthread_cond_wait(&w->asked, &w->mutex);
    (void)pthread_mutex_unlock(&w->mutex);
}
static inline void job_nothing(struct world *w)
{
    (void)w;
}
static inline unsigned world_connections(struct world *w)
{
    world_do(w, job_nothing);
    return w->connections;
}
static inline void on_drained(void *ctx)
{
    struct world *w = ctx;
    epd_rpc_server_destroy(w->server);
    w->server = NULL;
    epd_close_fd(&w->last_fd);
    uv_close((uv_handle_t *)&w->accept, NULL);
    uv_close((uv_handle_t *)&w->wake, NULL);
}
static inline void job_drain(struct world *w)
{
    epd_rpc_server_drain(w->server, 300, on_drained, w);
}
static inline void *loop_main(void *arg)
{
    struct world *w = arg;
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    return NULL;
}

static inline struct world *world_start(const struct world_options *options)
{
    struct world *w = calloc(1, sizeof(*w));
    struct epd_error err = {0};
    assert_non_null(w);
    strcpy(w->dir, "/tmp/epd-rpc-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
    w->last_fd = -1;
    assert_int_equal(uv_loop_init(&w->loop), 0);
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_cond_init(&w->asked, NULL);
    w->health = epd_health_create();
    struct epd_rpc_method *m = w->methods;
    epd_health_methods(w->health, m);
    m[2] = (struct epd_rpc_method){M_ECHO, EPD_RPC_UNARY, false, on_echo, w};
    m[3] = (struct epd_rpc_method){M_WHOAMI, EPD_RPC_UNARY, false, on_whoami, w};
    m[4] = (struct epd_rpc_method){M_FAIL, EPD_RPC_UNARY, false, on_fail, w};
    m[5] = (struct epd_rpc_method){M_HOLD, EPD_RPC_UNARY, false, on_hold, w};
    m[6] = (struct epd_rpc_method){M_DROP, EPD_RPC_UNARY, false, on_drop, w};
    m[7] = (struct epd_rpc_method){M_FLOW, EPD_RPC_STREAM, false, on_flow, w};
    m[8] = (struct epd_rpc_method){M_BIG, EPD_RPC_UNARY, false, on_big, w};
    const struct epd_rpc_options server = {.methods = m,
                                           .n_methods = METHODS,
                                           .frame_guard = options->guard,
                                           .idle_ms = options->idle_ms,
                                           .tcp_address = options->tcp};
    if (epd_rpc_server_create(&w->loop, &server, &w->server, &err) != EPD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(epd_listener_open(&w->listener, w->path, SOCK_STREAM, 0600, NULL, &err), 0);
    assert_int_equal(uv_poll_init(&w->loop, &w->accept, w->listener.fd), 0);
    assert_int_equal(uv_async_init(&w->loop, &w->wake, on_wake), 0);
    w->accept.data = w->wake.data = w;
    (void)uv_poll_start(&w->accept, UV_READABLE, on_accept);
    assert_int_equal(pthread_create(&w->thread, NULL, loop_main, w), 0);
    return w;
}
/* Begins the drain, when it has not begun; everything must end. */
static inline void world_stop(struct world *w)
{
    if (!w->drained)
        world_do(w, job_drain);
    (void)pthread_join(w->thread, NULL);
    epd_health_destroy(w->health);
    epd_listener_close(&w->listener);
    assert_int_equal(uv_loop_close(&w->loop), 0); /* nothing was left open */
    assert_null(w->held);
    assert_int_equal(w->flows, 0);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->asked);
    (void)rmdir(w->dir);
    free(w);
}

static inline int setup(void **state)
{
    *state = world_start(&(struct world_options){.idle_ms = 60000});
    return 0;
}
static inline int setup_guarded(void **state)
{
    *state = world_start(&(struct world_options){.guard = true, .idle_ms = 60000});
    return 0;
}
static inline int teardown(void **state)
{
    world_stop(*state);
    return 0;
}

#endif
