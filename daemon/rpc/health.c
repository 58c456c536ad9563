#include "daemon/rpc/health.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/rpc/pb_alloc.h"
#include "proto/health.pb-c.h"

#define SERVICE_UNKNOWN 3 /* Watch of a service that does not exist (yet) */

static const char *const g_services[] = {"", "readiness", "liveness", "epd.v1.Control"};

struct watcher {
    struct watcher *link;
    struct epd_health *health;
    struct epd_rpc_call *call; /* a reference */
    unsigned service;
};

struct epd_health {
    int state[EPD_ARRAY_LEN(g_services)];
    struct watcher *watchers;
};

struct epd_health *epd_health_create(void)
{
    struct epd_health *h = calloc(1, sizeof(*h));
    for (unsigned i = 0; h != NULL && i < EPD_ARRAY_LEN(g_services); i++)
        h->state[i] = EPD_HEALTH_NOT_SERVING;
    return h;
}

static void watcher_free(struct watcher *w)
{
    struct watcher **at = &w->health->watchers;
    while (*at != w)
        at = &(*at)->link;
    *at = w->link;
    epd_rpc_call_unref(w->call);
    free(w);
}

void epd_health_destroy(struct epd_health *health)
{
    if (health == NULL)
        return;
    while (health->watchers != NULL)
        watcher_free(health->watchers);
    free(health);
}

/* Index of the service; the number of services when unknown; -1 when the request does not parse. */
static int find_service(const uint8_t *msg, size_t len)
{
    struct epd_pb_arena arena;
    epd_pb_arena_init(&arena, EPD_PB_CAP);
    Grpc__Health__V1__HealthCheckRequest *request =
        grpc__health__v1__health_check_request__unpack(&arena.allocator, len, msg);
    if (request == NULL)
        return -1;
    int i = 0;
    while (i < (int)EPD_ARRAY_LEN(g_services) && strcmp(request->service, g_services[i]) != 0)
        i++;
    grpc__health__v1__health_check_request__free_unpacked(request, &arena.allocator);
    return i;
}

static size_t pack(int state, uint8_t out[16])
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)state;
    return grpc__health__v1__health_check_response__pack(&response, out);
}

static void handle_check(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    const struct epd_health *h = ctx;
    uint8_t out[16];
    const int i = find_service(msg, len);
    if (i < 0)
        epd_rpc_call_fail(call, EPD_EINVAL, "HealthCheckRequest does not parse");
    else if (i == (int)EPD_ARRAY_LEN(g_services))
        epd_rpc_call_fail(call, EPD_ENOENT,
                          "unknown service: \"\", readiness, liveness or "
                          "epd.v1.Control");
    else
        epd_rpc_call_reply(call, out, pack(h->state[i], out));
}

static void tell(struct watcher *w, int state)
{
    uint8_t out[16];
    (void)epd_rpc_call_send(w->call, out, pack(state, out)); /* a lost reader ends by cancel */
}

static void on_watch_end(void *ctx)
{
    watcher_free(ctx);
}

static void handle_watch(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_health *h = ctx;
    const int i = find_service(msg, len);
    if (i < 0) {
        epd_rpc_call_finish(call, EPD_EINVAL, "HealthCheckRequest does not parse");
        return;
    }
    struct watcher *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        epd_rpc_call_finish(call, EPD_ENOMEM, "no memory for a watch");
        return;
    }
    *w = (struct watcher){.link = h->watchers, .health = h, .call = call, .service = (unsigned)i};
    h->watchers = w;
    epd_rpc_call_ref(call);
    epd_rpc_call_on_cancel(call, on_watch_end, w);
    tell(w, i == (int)EPD_ARRAY_LEN(g_services) ? SERVICE_UNKNOWN : h->state[i]);
}

void epd_health_set(struct epd_health *health, const char *service, enum epd_health_state state)
{
    for (unsigned i = 0; i < EPD_ARRAY_LEN(g_services); i++) {
        if (strcmp(service, g_services[i]) != 0 || health->state[i] == (int)state)
            continue;
        health->state[i] = (int)state;
        for (struct watcher *w = health->watchers; w != NULL; w = w->link)
            if (w->service == i)
                tell(w, (int)state);
    }
}

void epd_health_methods(struct epd_health *health, struct epd_rpc_method out[EPD_HEALTH_METHODS])
{
    out[0] = (struct epd_rpc_method){.path = "/grpc.health.v1.Health/Check",
                                     .kind = EPD_RPC_UNARY,
                                     .is_public = true,
                                     .handle = handle_check,
                                     .ctx = health};
    out[1] = (struct epd_rpc_method){.path = "/grpc.health.v1.Health/Watch",
                                     .kind = EPD_RPC_STREAM,
                                     .is_public = true,
                                     .handle = handle_watch,
                                     .ctx = health};
}
