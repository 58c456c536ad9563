/* The server under test: its state, and the methods that it serves. */
#ifndef EPD_TEST_RPC_WORLD_METHODS_H
#define EPD_TEST_RPC_WORLD_METHODS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/ipc/listener.h"
#include "daemon/rpc/health.h"
#include "daemon/rpc/server.h"
#include "tests/unit/rpc/calls.h"

#define M_ECHO "/t.T/Echo"
#define M_WHOAMI "/t.T/Whoami"
#define M_FAIL "/t.T/Fail"
#define M_HOLD "/t.T/Hold"
#define M_DROP "/t.T/Drop"
#define M_FLOW "/t.T/Flow"
#define M_BIG "/t.T/Big"
#define METHODS (EPD_HEALTH_METHODS + 7u)
#define BIG_BYTES 100000u

struct world_options {
    bool guard;
    uint64_t idle_ms;
    const char *tcp;
};

struct world {
    char dir[40], path[60];
    uv_loop_t loop;
    struct epd_rpc_server *server;
    struct epd_health *health;
    struct epd_listener listener;
    struct epd_rpc_method methods[METHODS];
    uv_poll_t accept;
    uv_async_t wake; /* runs `job` on the loop */
    void (*job)(struct world *w);
    pthread_t thread;
    bool started;
    struct epd_rpc_call *held;            /* the loop's; a reference */
    int last_fd;                          /* the loop's: a copy of the newest connection */
    int cancelled, drops, refused, flows; /* atomic */
    unsigned connections;                 /* valid after world_ask */
    pthread_mutex_t mutex;
    pthread_cond_t asked;
    bool busy, drained; /* guarded by mutex */
};

static inline void on_echo(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    (void)ctx;
    epd_rpc_call_reply(call, msg, len);
    epd_rpc_call_reply(call, msg, len); /* ignored */
}
static inline void on_whoami(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    char text[64];
    (void)msg, (void)len, (void)ctx;
    const struct epd_peer *peer = epd_rpc_call_peer(call);
    const int n = snprintf(text, sizeof(text), "%d %u", (int)peer->pid, (unsigned)peer->uid);
    epd_rpc_call_reply(call, (const uint8_t *)text, (size_t)n);
}
static inline void on_big(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    static const uint8_t zeros[BIG_BYTES];
    (void)msg, (void)len, (void)ctx;
    epd_rpc_call_reply(call, zeros, sizeof(zeros));
}
static inline void on_fail(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    (void)msg, (void)len, (void)ctx;
    epd_rpc_call_fail(call, EPD_EBUSY, "seat 3 is leased by pid 7");
}
static inline void on_held_cancel(void *ctx)
{
    struct world *w = ctx;
    count_up(&w->cancelled, 1);
    epd_rpc_call_reply(w->held, (const uint8_t *)"late", 4); /* to nobody */
    epd_rpc_call_unref(w->held);
    w->held = NULL;
}
static inline void on_hold(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct world *w = ctx;
    (void)msg, (void)len;
    assert_null(w->held);
    w->held = call;
    epd_rpc_call_ref(call);
    epd_rpc_call_on_cancel(call, on_held_cancel, w);
}
/* Executes, then the connection breaks before the answer. */
static inline void on_drop(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct world *w = ctx;
    (void)call, (void)msg, (void)len;
    count_up(&w->drops, 1);
    (void)shutdown(w->last_fd, SHUT_RDWR);
}

struct flow {
    struct world *w;
    struct epd_rpc_call *call;
};
static inline void on_flow_end(void *ctx)
{
    struct flow *f = ctx;
    count_up(&f->w->flows, -1);
    epd_rpc_call_unref(f->call);
    free(f);
}
/* A stream: n messages of m bytes ("n m"), then it stays open ("n m .": it ends). */
static inline void on_flow(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct world *w = ctx;
    char text[64];
    unsigned n = 0;
    size_t bytes = 0;
    snprintf(text, sizeof(text), "%.*s", (int)len, (const char *)msg);
    (void)sscanf(text, "%u %zu", &n, &bytes);
    uint8_t *data = calloc(1, bytes + 1);
    enum epd_status status = EPD_OK;
    for (unsigned i = 0; i < n && status == EPD_OK; i++) {
        data[0] = (uint8_t)i;
        status = epd_rpc_call_send(call, data, bytes);
    }
    free(data);
    if (status != EPD_OK)
        count_up(&w->refused, 1);
    if (strchr(text, '.') != NULL) {
        epd_rpc_call_finish(call, EPD_OK, "");
        return;
    }
    struct flow *f = malloc(sizeof(*f));
    *f = (struct flow){w, call};
    epd_rpc_call_ref(call);
    epd_rpc_call_on_cancel(call, on_flow_end, f);
    count_up(&w->flows, 1);
}

#endif
