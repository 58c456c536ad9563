/* The gRPC server on a real loop and real sockets, called through libepd-rpc's transport. */
/* test-timeout: 120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/rpc/table.h"
#include "daemon/base/util.h"
#include "daemon/ipc/listener.h"
#include "daemon/ipc/peer.h"
#include "daemon/rpc/health.h"
#include "daemon/rpc/server.h"

static char g_dir[64], g_path[100];

struct world {
    uv_loop_t loop;
    struct epd_rpc_server *server;
    struct epd_health *health;
    struct epd_listener listener;
    uv_poll_t accept;
    uv_async_t stop;
    pthread_t thread;
    bool guard;
    unsigned connections; /* as of stop */
    struct epd_rpc_call *held;
    int cancelled;
};

static void on_echo(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    (void)ctx;
    epd_rpc_call_reply(call, msg, len);
}
static void on_whoami(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    char text[64];
    (void)msg;
    (void)len;
    (void)ctx;
    int n = snprintf(text, sizeof(text), "%d %u", (int)epd_rpc_call_peer(call)->pid,
                     (unsigned)epd_rpc_call_peer(call)->uid);
    epd_rpc_call_reply(call, (const uint8_t *)text, (size_t)n);
}
static void on_fail(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    (void)msg;
    (void)len;
    (void)ctx;
    epd_rpc_call_fail(call, EPD_EBUSY, "seat 3 is leased by pid 7");
}
static void on_held_cancel(void *ctx)
{
    struct world *w = ctx;
    __atomic_add_fetch(&w->cancelled, 1, __ATOMIC_SEQ_CST);
    epd_rpc_call_unref(w->held);
}
static void on_hold(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct world *w = ctx;
    (void)msg;
    (void)len;
    w->held = call;
    epd_rpc_call_ref(call);
    epd_rpc_call_on_cancel(call, on_held_cancel, w);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct world *w = poll->data;
    struct epd_peer peer;
    struct epd_error err;
    (void)status;
    (void)events;
    int fd = accept4(w->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    assert_int_equal(epd_peer_of_socket(fd, &peer, &err), EPD_OK);
    if (epd_rpc_server_add_connection(w->server, fd, &peer, &err) != EPD_OK)
        fprintf(stderr, "add_connection: %s\n", err.message);
}

static void on_drained(void *ctx)
{
    struct world *w = ctx;
    epd_rpc_server_destroy(w->server);
    uv_close((uv_handle_t *)&w->accept, NULL);
    uv_close((uv_handle_t *)&w->stop, NULL);
}
static void on_stop(uv_async_t *async)
{
    struct world *w = async->data;
    w->connections = epd_rpc_server_connections(w->server);
    epd_rpc_server_drain(w->server, 200, on_drained, w);
}

static void *loop_main(void *arg)
{
    struct world *w = arg;
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    return NULL;
}

static int setup_world(void **state, bool guard)
{
    static struct epd_rpc_method methods[8];
    struct world *w = calloc(1, sizeof(*w));
    struct epd_error err = {0};
    strcpy(g_dir, "/tmp/epd-rpc-XXXXXX");
    assert_non_null(mkdtemp(g_dir));
    snprintf(g_path, sizeof(g_path), "%s/s", g_dir);
    w->guard = guard;
    assert_int_equal(uv_loop_init(&w->loop), 0);
    w->health = epd_health_create();
    methods[0] = (struct epd_rpc_method){"/t.T/Echo", EPD_RPC_UNARY, false, on_echo, w};
    methods[1] = (struct epd_rpc_method){"/t.T/Whoami", EPD_RPC_UNARY, false, on_whoami, w};
    methods[2] = (struct epd_rpc_method){"/t.T/Fail", EPD_RPC_UNARY, false, on_fail, w};
    methods[3] = (struct epd_rpc_method){"/t.T/Hold", EPD_RPC_UNARY, false, on_hold, w};
    epd_health_methods(w->health, methods + 4);
    const struct epd_rpc_options options = {
        .methods = methods, .n_methods = 6, .frame_guard = guard, .idle_ms = 60000};
    if (epd_rpc_server_create(&w->loop, &options, &w->server, &err) != EPD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(epd_listener_open(&w->listener, g_path, SOCK_STREAM, 0600, NULL, &err),
                     EPD_OK);
    assert_int_equal(uv_poll_init(&w->loop, &w->accept, w->listener.fd), 0);
    assert_int_equal(uv_async_init(&w->loop, &w->stop, on_stop), 0);
    w->accept.data = w->stop.data = w;
    (void)uv_poll_start(&w->accept, UV_READABLE, on_accept);
    assert_int_equal(pthread_create(&w->thread, NULL, loop_main, w), 0);
    *state = w;
    return 0;
}
static int setup(void **state)
{
    return setup_world(state, false);
}
static int setup_guarded(void **state)
{
    return setup_world(state, true);
}

static int teardown(void **state)
{
    struct world *w = *state;
    (void)uv_async_send(&w->stop);
    (void)pthread_join(w->thread, NULL);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    epd_health_destroy(w->health);
    epd_listener_close(&w->listener);
    assert_int_equal(uv_loop_close(&w->loop), 0); /* nothing was left open */
    free(w);
    (void)rmdir(g_dir);
    return 0;
}

static const struct epd_rpc_table *table(void)
{
    static const struct epd_rpc_table *t;
    char path[512];
    const char *lib = getenv("EPD_LIB_DIR");
    if (t != NULL)
        return t;
    snprintf(path, sizeof(path), "%s/libepd-rpc.so", lib != NULL ? lib : "build/lib");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fail_msg("%s", dlerror());
    const struct epd_rpc_table *(*get)(void);
    *(void **)&get = dlsym(handle, EPD_RPC_TABLE_SYMBOL);
    t = get();
    return t;
}

static int call(struct epd_rpc_conn *conn, const char *method, const char *text, int64_t ms,
                char *out, char *err)
{
    uint8_t *resp = NULL;
    size_t len = 0;
    int status = table()->unary(conn, method, (const uint8_t *)text, strlen(text), ms * 1000000,
                                &resp, &len, err, 256);
    if (status == EPD_OK && out != NULL)
        snprintf(out, 256, "%.*s", (int)len, (const char *)resp);
    table()->free_bytes(resp);
    return status;
}

static struct epd_rpc_conn *open_conn(void)
{
    struct epd_rpc_conn *conn = NULL;
    char err[256];
    assert_int_equal(table()->open(g_path, &conn, err, sizeof(err)), EPD_OK);
    return conn;
}

static void test_unary(void **state)
{
    (void)state;
    char out[256], err[256], want[64];
    struct epd_rpc_conn *conn = open_conn();
    assert_int_equal(call(conn, "/t.T/Echo", "hello", 5000, out, err), EPD_OK);
    assert_string_equal(out, "hello");
    assert_int_equal(call(conn, "/t.T/Whoami", "x", 5000, out, err), EPD_OK);
    snprintf(want, sizeof(want), "%d %u", (int)getpid(), (unsigned)getuid());
    assert_string_equal(out, want);
    assert_int_equal(call(conn, "/t.T/Fail", "x", 5000, out, err), EPD_EBUSY);
    assert_string_equal(err, "seat 3 is leased by pid 7");
    assert_int_equal(call(conn, "/t.T/Nothing", "x", 5000, out, err), EPD_EUNSUPPORTED);
    table()->close(conn);
}

static void test_limits(void **state)
{
    (void)state;
    char err[256];
    struct epd_rpc_conn *conn = open_conn();
    char *big = malloc((2u << 20) + 1);
    memset(big, 'x', 2u << 20);
    big[2u << 20] = 0;
    assert_int_equal(call(conn, "/t.T/Echo", big, 5000, NULL, err), EPD_ELIMIT);
    free(big);
    assert_int_equal(call(conn, "/t.T/Echo", "still here", 5000, NULL, err), EPD_OK);
    table()->close(conn);
}

static void test_deadline_and_cancel(void **state)
{
    struct world *w = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_conn();
    assert_int_equal(call(conn, "/t.T/Hold", "x", 100, NULL, err), EPD_ETIMEDOUT);
    for (unsigned i = 0; i < 200 && __atomic_load_n(&w->cancelled, __ATOMIC_SEQ_CST) == 0; i++)
        usleep(10000);
    assert_int_equal(__atomic_load_n(&w->cancelled, __ATOMIC_SEQ_CST), 1);
    table()->close(conn);
}

static void test_unreachable(void **state)
{
    (void)state;
    struct epd_rpc_conn *conn = NULL;
    char err[256];
    assert_int_equal(table()->open("/tmp/epd-no-such-socket", &conn, err, sizeof(err)), EPD_OK);
    assert_int_equal(call(conn, "/t.T/Echo", "x", 2000, NULL, err), EPD_EUNREACHABLE);
    table()->close(conn);
}

static void test_health_watch(void **state)
{
    (void)state;
    struct epd_rpc_stream *stream = NULL;
    uint8_t *msg = NULL;
    size_t len = 0;
    char err[256], out[256];
    struct epd_rpc_conn *conn = open_conn();
    assert_int_equal(call(conn, "/grpc.health.v1.Health/Check", "", 5000, out, err), EPD_OK);
    assert_memory_equal(out, "\x08\x02", 2); /* NOT_SERVING */
    assert_int_equal(call(conn, "/grpc.health.v1.Health/Check", "\x0a\x03xyz", 5000, out, err),
                     EPD_ENOENT);
    assert_int_equal(table()->stream_open(conn, "/grpc.health.v1.Health/Watch",
                                          (const uint8_t *)"\x0a\x03xyz", 5, &stream, err, 256),
                     EPD_OK);
    assert_int_equal(table()->stream_next(stream, 5000000000, &msg, &len, err, 256), EPD_OK);
    assert_int_equal(len, 2);
    assert_memory_equal(msg, "\x08\x03", 2); /* SERVICE_UNKNOWN, and it stays open */
    table()->free_bytes(msg);
    assert_int_equal(table()->stream_next(stream, 50000000, &msg, &len, err, 256), EPD_ETIMEDOUT);
    table()->stream_close(stream);
    table()->close(conn);
}

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static int64_t now_us(void)
{
    return (int64_t)(epd_now_ns() / 1000);
}

static void client_process(void)
{
    char err[256], out[256];
    struct epd_rpc_conn *conn = open_conn();
    for (unsigned i = 0; i < 50; i++)
        if (call(conn, "/t.T/Echo", "abc", 20000, out, err) != EPD_OK) {
            fprintf(stderr, "client: %s\n", err);
            _exit(1);
        }
    table()->close(conn);
    _exit(0);
}

/* fork without exec is not for gRPC: the children are made before this process uses it. */
static void test_many_processes(void **state)
{
    (void)state;
    char self[512], err[256];
    enum { N = 24 };
    pid_t pids[N];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = 0;
    const unsigned before = count_fds();
    for (unsigned i = 0; i < N; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            execl(self, self, "--client", g_path, (char *)NULL);
            _exit(127);
        }
    }
    usleep(20000);
    for (unsigned i = 0; i < N / 4; i++)
        kill(pids[i], SIGKILL);
    for (unsigned i = 0; i < N; i++) {
        int code;
        assert_int_equal(waitpid(pids[i], &code, 0), pids[i]);
        if (i >= N / 4)
            assert_int_equal(code, 0);
    }
    struct epd_rpc_conn *conn = open_conn();
    const int64_t t = now_us();
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(call(conn, "/t.T/Echo", "x", 5000, NULL, err), EPD_OK);
    printf("echo: %.0f us a call\n", (double)(now_us() - t) / 200.0);
    table()->close(conn);
    unsigned after = 0;
    for (unsigned i = 0; i < 300; i++) {
        after = count_fds();
        if (after <= before + 2)
            break;
        usleep(10000);
    }
    assert_true(after <= before + 2);
}

/* A hand-made client: preface, SETTINGS, then HEADERS + RST_STREAM as fast as it can. */
static void test_rapid_reset(void **state)
{
    (void)state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    strcpy(addr.sun_path, g_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(write(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24), 24);
    assert_int_equal(write(fd, "\0\0\0\x04\0\0\0\0\0", 9), 9);
    unsigned resets = 0;
    for (uint32_t stream = 1; stream < 40000; stream += 2) {
        const uint8_t frames[] = {
            0, 0, 1, 1, 4, 0, 0, (uint8_t)(stream >> 8), (uint8_t)stream, 0x82,
            0, 0, 4, 3, 0, 0, 0, (uint8_t)(stream >> 8), (uint8_t)stream, 0,
            0, 0, 8};
        if (send(fd, frames, sizeof(frames), MSG_NOSIGNAL) != (ssize_t)sizeof(frames))
            break;
        resets++;
    }
    printf("cut off after about %u resets\n", resets);
    assert_true(resets < 19999);
    close(fd);
    char err[256];
    struct epd_rpc_conn *conn = open_conn();
    assert_int_equal(call(conn, "/t.T/Echo", "others are served", 5000, NULL, err), EPD_OK);
    table()->close(conn);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--client") == 0) {
        snprintf(g_path, sizeof(g_path), "%s", argv[2]);
        client_process();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unary, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deadline_and_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreachable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_health_watch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_processes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unary, setup_guarded, teardown),
        cmocka_unit_test_setup_teardown(test_many_processes, setup_guarded, teardown),
        cmocka_unit_test_setup_teardown(test_rapid_reset, setup_guarded, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
