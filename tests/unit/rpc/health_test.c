/* grpc.health.v1 as served: Check and Watch, over the unix socket and over TCP. */
/* test-timeout: 60 */
#include "tests/unit/rpc/world.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "proto/health.pb-c.h"
#include "tests/unit/rpc/http2.h"

#define M_CHECK "/grpc.health.v1.Health/Check"
#define M_WATCH "/grpc.health.v1.Health/Watch"
#define SERVICE_UNKNOWN 3

static size_t pack_request(const char *service, uint8_t out[64])
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    return grpc__health__v1__health_check_request__pack(&request, out);
}

static int state_of(const uint8_t *msg, size_t len)
{
    Grpc__Health__V1__HealthCheckResponse *response =
        grpc__health__v1__health_check_response__unpack(NULL, len, msg);
    assert_non_null(response);
    const int status = (int)response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    return status;
}

/* The state (> 0), or why there is none (< 0). */
static int check(struct epd_rpc_conn *conn, const char *service)
{
    uint8_t request[64], *resp = NULL;
    size_t len = 0;
    char err[256];
    int status = table()->unary(conn, M_CHECK, request, pack_request(service, request), 5 * SECOND,
                                &resp, &len, err, sizeof(err));
    if (status == EPD_OK)
        status = state_of(resp, len);
    table()->free_bytes(resp);
    return status;
}

static struct epd_rpc_stream *watch(struct epd_rpc_conn *conn, const char *service)
{
    struct epd_rpc_stream *stream = NULL;
    uint8_t request[64];
    char err[256];
    assert_int_equal(table()->stream_open(conn, M_WATCH, request, pack_request(service, request),
                                          &stream, err, sizeof(err)),
                     EPD_OK);
    return stream;
}

/* The next state that the watch tells (> 0), or its failure (< 0). */
static int told(struct epd_rpc_stream *stream, int64_t timeout_ns)
{
    uint8_t *msg = NULL;
    size_t len = 0;
    char err[256];
    int status = table()->stream_next(stream, timeout_ns, &msg, &len, err, sizeof(err));
    if (status == EPD_OK) {
        status = state_of(msg, len);
        table()->free_bytes(msg);
    }
    return status;
}

static void job_serve(struct world *w)
{
    epd_health_set(w->health, "", EPD_HEALTH_SERVING);
}
static void job_serve_control(struct world *w)
{
    epd_health_set(w->health, "epd.v1.Control", EPD_HEALTH_SERVING);
}
static void job_stop_serving(struct world *w)
{
    epd_health_set(w->health, "", EPD_HEALTH_NOT_SERVING);
}
static void job_unknown(struct world *w)
{
    epd_health_set(w->health, "no.such.Service", EPD_HEALTH_SERVING);
}

static void test_check(void **state)
{
    struct world *w = *state;
    struct epd_rpc_conn *conn = open_path(w->path);
    static const char *const services[] = {"", "liveness", "readiness", "epd.v1.Control"};
    for (unsigned i = 0; i < EPD_ARRAY_LEN(services); i++)
        assert_int_equal(check(conn, services[i]), EPD_HEALTH_NOT_SERVING);
    world_do(w, job_serve);
    assert_int_equal(check(conn, ""), EPD_HEALTH_SERVING);
    assert_int_equal(check(conn, "readiness"), EPD_HEALTH_NOT_SERVING); /* each its own */
    world_do(w, job_stop_serving);
    assert_int_equal(check(conn, ""), EPD_HEALTH_NOT_SERVING);
    table()->close(conn);
}

static void test_check_unknown(void **state)
{
    struct world *w = *state;
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(check(conn, "no.such.Service"), EPD_ENOENT);
    world_do(w, job_unknown); /* does not make it known */
    assert_int_equal(check(conn, "no.such.Service"), EPD_ENOENT);
    assert_int_equal(check(conn, "livenes"), EPD_ENOENT);
    table()->close(conn);
}

static void test_broken_request(void **state)
{
    struct world *w = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *stream = NULL;
    /* field 1 says 127 bytes and has 1 */
    assert_int_equal(call(conn, M_CHECK, "\x0a\x7fx", 5000, NULL, err), EPD_EINVAL);
    assert_int_equal(table()->stream_open(conn, M_WATCH, (const uint8_t *)"\x0a\x7fx", 3, &stream,
                                          err, sizeof(err)),
                     EPD_OK);
    assert_int_equal(told(stream, 5 * SECOND), EPD_EINVAL);
    table()->stream_close(stream);
    table()->close(conn);
}

/* The state at once, then what changes: no repetition, and nothing of other services. */
static void test_watch(void **state)
{
    struct world *w = *state;
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *all = watch(conn, ""), *control = watch(conn, "epd.v1.Control");
    assert_int_equal(told(all, 5 * SECOND), EPD_HEALTH_NOT_SERVING);
    assert_int_equal(told(control, 5 * SECOND), EPD_HEALTH_NOT_SERVING);
    world_do(w, job_serve);
    world_do(w, job_serve);
    world_do(w, job_stop_serving);
    assert_int_equal(told(all, 5 * SECOND), EPD_HEALTH_SERVING);
    assert_int_equal(told(all, 5 * SECOND), EPD_HEALTH_NOT_SERVING);
    assert_int_equal(told(all, SECOND / 20), EPD_ETIMEDOUT);
    assert_int_equal(told(control, SECOND / 20), EPD_ETIMEDOUT);
    table()->stream_close(all);
    world_do(w, job_serve); /* the watcher that left is not told, or crashes here */
    world_do(w, job_serve_control);
    assert_int_equal(told(control, 5 * SECOND), EPD_HEALTH_SERVING);
    table()->stream_close(control);
    table()->close(conn);
}

/* Says so and stays open, unlike Check. */
static void test_watch_unknown(void **state)
{
    struct world *w = *state;
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *stream = watch(conn, "no.such.Service");
    assert_int_equal(told(stream, 5 * SECOND), SERVICE_UNKNOWN);
    world_do(w, job_unknown);
    world_do(w, job_serve);
    assert_int_equal(told(stream, SECOND / 20), EPD_ETIMEDOUT);
    table()->stream_close(stream);
    table()->close(conn);
}

/* A drain tells watchers the last state, then ends them; none is leaked (the world looks). */
static void test_watch_drain(void **state)
{
    struct world *w = *state;
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *stream = watch(conn, "");
    assert_int_equal(told(stream, 5 * SECOND), EPD_HEALTH_NOT_SERVING);
    world_do(w, job_serve);
    world_do(w, job_stop_serving);
    world_do(w, job_drain);
    w->drained = true;
    assert_int_equal(told(stream, 5 * SECOND), EPD_HEALTH_SERVING);
    assert_int_equal(told(stream, 5 * SECOND), EPD_HEALTH_NOT_SERVING);
    /* Its status, unless the grace period of the drain was over first (a slow machine). */
    const int end = told(stream, 5 * SECOND);
    assert_true(end == EPD_EDRAINING || end == EPD_EUNREACHABLE);
    table()->stream_close(stream);
    table()->close(conn);
}

/* ---- TCP: health is public, nothing else is ---- */

/* A port that was free a moment ago. */
static uint16_t free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    close(fd);
    return ntohs(addr.sin_port);
}

static int connect_tcp(uint16_t port)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

static void test_tcp(void **state)
{
    (void)state;
    char address[32];
    const uint16_t port = free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    struct world *w = world_start(&(struct world_options){.idle_ms = 60000, .tcp = address});
    world_do(w, job_serve);
    const int fd = connect_tcp(port);
    assert_true(h2_hello(fd));
    assert_true(h2_open(fd, 1, M_CHECK, false) && h2_message(fd, 1, "", 0));
    /* uncompressed message of 2 bytes: status = SERVING */
    assert_true(h2_sees(fd, "\0\0\0\0\x02\x08\x01", 7, 5000));
    assert_true(h2_open(fd, 3, M_ECHO, false) && h2_message(fd, 3, "x", 1));
    assert_true(h2_sees(fd, "\x0bgrpc-status\x01\x37", 14, 5000)); /* PERMISSION_DENIED */
    assert_int_equal(world_connections(w), 0);                     /* TCP is gRPC's own */
    close(fd);
    world_stop(w);
}

/* A server that cannot listen says where, and leaves nothing behind. */
static void test_no_such_address(void **state)
{
    uv_loop_t loop;
    struct epd_rpc_server *server = NULL;
    struct epd_error err = {0};
    const struct epd_rpc_options options = {.tcp_address = "256.0.0.1:x"};
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(epd_rpc_server_create(&loop, &options, &server, &err), EPD_ESYS);
    assert_non_null(strstr(err.message, "256.0.0.1:x"));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
#define PLAIN(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define GUARDED(name) cmocka_unit_test_setup_teardown(name, setup_guarded, teardown)
    const struct CMUnitTest tests[] = {
        PLAIN(test_check),       PLAIN(test_check_unknown),  PLAIN(test_broken_request),
        PLAIN(test_watch),       GUARDED(test_watch),        PLAIN(test_watch_unknown),
        PLAIN(test_watch_drain), cmocka_unit_test(test_tcp), cmocka_unit_test(test_no_such_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
