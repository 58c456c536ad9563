/* The gRPC server on a real loop and real sockets, called through libepd-rpc's transport and by a
 * hand-made HTTP/2 client. */
/* test-timeout: 180 */
#include "tests/unit/rpc/world.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/rpc/http2.h"

static void test_unary(void **state)
{
    struct world *w = *state;
    char out[256], err[256], want[64];
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(call(conn, M_ECHO, "hello", 5000, out, err), EPD_OK);
    assert_string_equal(out, "hello");
    assert_int_equal(call(conn, M_ECHO, "", 5000, out, err), EPD_OK);
    assert_string_equal(out, "");
    assert_int_equal(call(conn, M_WHOAMI, "x", 5000, out, err), EPD_OK);
    snprintf(want, sizeof(want), "%d %u", (int)getpid(), (unsigned)getuid());
    assert_string_equal(out, want);
    assert_int_equal(call(conn, M_FAIL, "x", 5000, out, err), EPD_EBUSY);
    assert_string_equal(err, "seat 3 is leased by pid 7");
    assert_int_equal(call(conn, "/t.T/Nothing", "x", 5000, out, err), EPD_EUNSUPPORTED);
    table()->close(conn);
}

static void test_size(void **state)
{
    struct world *w = *state;
    char err[256], out[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    char *big = malloc((2u << 20) + 1);
    memset(big, 'x', 2u << 20);
    big[2u << 20] = 0;
    assert_int_equal(call(conn, M_ECHO, big, 5000, NULL, err), EPD_ELIMIT);
    big[EPD_RPC_MESSAGE_MAX + 1] = 0;
    assert_int_equal(call(conn, M_ECHO, big, 5000, NULL, err), EPD_ELIMIT);
    big[EPD_RPC_MESSAGE_MAX] = 0;
    assert_int_equal(call(conn, M_ECHO, big, 5000, out, err), EPD_OK);
    free(big);
    assert_int_equal(call(conn, M_ECHO, "still here", 5000, NULL, err), EPD_OK);
    table()->close(conn);
}

static void test_deadline(void **state)
{
    struct world *w = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(call(conn, M_HOLD, "x", 100, NULL, err), EPD_ETIMEDOUT);
    EVENTUALLY(count_of(&w->cancelled) == 1);
    assert_int_equal(call(conn, M_ECHO, "x", 5000, NULL, err), EPD_OK);
    table()->close(conn);
}

static void next(struct epd_rpc_stream *stream, size_t want_len, int want_first)
{
    uint8_t *msg = NULL;
    size_t len = 0;
    char err[256] = "";
    const int status = table()->stream_next(stream, 10 * SECOND, &msg, &len, err, sizeof(err));
    if (status != EPD_OK)
        fail_msg("%d %s", status, err);
    assert_int_equal(len, want_len);
    assert_int_equal(msg[0], want_first);
    table()->free_bytes(msg);
}

static struct epd_rpc_stream *open_stream(struct epd_rpc_conn *conn, const char *what)
{
    struct epd_rpc_stream *stream = NULL;
    char err[256];
    assert_int_equal(table()->stream_open(conn, M_FLOW, (const uint8_t *)what, strlen(what),
                                          &stream, err, sizeof(err)),
                     EPD_OK);
    return stream;
}

static void test_stream(void **state)
{
    struct world *w = *state;
    uint8_t *msg = NULL;
    size_t len;
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *ended = open_stream(conn, "200 5000 .");
    struct epd_rpc_stream *open = open_stream(conn, "3 10");
    for (int i = 0; i < 200; i++)
        next(ended, 5000, i);
    assert_int_equal(table()->stream_next(ended, SECOND, &msg, &len, err, 256), EPD_ECANCELED);
    assert_int_equal(table()->stream_next(ended, SECOND, &msg, &len, err, 256), EPD_ECANCELED);
    table()->stream_close(ended);
    for (int i = 0; i < 3; i++)
        next(open, 10, i);
    assert_int_equal(table()->stream_next(open, SECOND / 20, &msg, &len, err, 256), EPD_ETIMEDOUT);
    assert_int_equal(count_of(&w->flows), 1);
    table()->stream_close(open); /* the handler learns of it */
    EVENTUALLY(count_of(&w->flows) == 0);
    table()->close(conn);
}

/* A call that has run is not run again, whatever becomes of its answer. */
static void test_never_twice(void **state)
{
    struct world *w = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(call(conn, M_ECHO, "x", 5000, NULL, err), EPD_OK);
        assert_int_equal(call(conn, M_DROP, "x", 5000, NULL, err), EPD_EUNREACHABLE);
        assert_int_equal(count_of(&w->drops), i);
        EVENTUALLY(call(conn, M_ECHO, "x", 5000, NULL, err) == EPD_OK);
    }
    table()->close(conn);
}

/* The server closes what is idle; the next call does not notice. */
static void test_idle(void **state)
{
    (void)state;
    for (int guard = 0; guard < 2; guard++) {
        struct world *w = world_start(&(struct world_options){.guard = guard != 0, .idle_ms = 200});
        char err[256] = "";
        struct epd_rpc_conn *conn = open_path(w->path);
        const int silent = h2_connect(w->path);
        assert_int_equal(call(conn, M_ECHO, "x", 5000, NULL, err), EPD_OK);
        for (int i = 0; i < 4; i++) {
            EVENTUALLY(world_connections(w) == 0); /* the silent one as well */
            if (call(conn, M_ECHO, "x", 5000, NULL, err) != EPD_OK)
                fail_msg("%s", err);
        }
        assert_true(h2_ends(silent, 1000));
        close(silent);
        table()->close(conn);
        world_stop(w);
    }
}

/* ---- what gRPC's client does not do ---- */

static void test_no_message(void **state)
{
    struct world *w = *state;
    const int fd = h2_connect(w->path);
    assert_true(h2_hello(fd));
    assert_true(h2_open(fd, 1, M_ECHO, true));
    assert_true(h2_sees(fd, "\x0bgrpc-status\x01\x33", 14, 5000)); /* INVALID_ARGUMENT */
    assert_true(h2_open(fd, 3, "/no.Such/Method", true));
    assert_true(h2_sees(fd, "\x0bgrpc-status\x02\x31\x32", 15, 5000)); /* UNIMPLEMENTED */
    close(fd);
}

/* 256 calls at once are one user's share; nobody hangs. */
static void test_calls_of_one_user(void **state)
{
    struct world *w = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    struct epd_rpc_stream *stream[EPD_RPC_CALLS_PER_UID + 1];
    for (unsigned i = 0; i < EPD_RPC_CALLS_PER_UID; i++)
        stream[i] = open_stream(conn, "1 1");
    EVENTUALLY(count_of(&w->flows) == (int)EPD_RPC_CALLS_PER_UID);
    assert_int_equal(call(conn, M_ECHO, "x", 5000, NULL, err), EPD_ELIMIT);
    table()->stream_close(stream[0]);
    EVENTUALLY(call(conn, M_ECHO, "x", 5000, NULL, err) == EPD_OK);
    for (unsigned i = 1; i < EPD_RPC_CALLS_PER_UID; i++)
        table()->stream_close(stream[i]);
    table()->close(conn);
}

/* A user who keeps connecting is refused before the descriptors are gone. */
static void test_connections_of_one_user(void **state)
{
    struct world *w = *state;
    static int fd[EPD_RPC_CONNS_PER_UID + 8];
    unsigned n = 0;
    for (; n < EPD_RPC_CONNS_PER_UID + 8; n++)
        assert_true((fd[n] = h2_connect(w->path)) >= 0);
    EVENTUALLY(count_of(&w->refused) == 8);
    assert_int_equal(world_connections(w), EPD_RPC_CONNS_PER_UID);
    assert_true(h2_ends(fd[n - 1], 1000)); /* told at once */
    while (n > 0)
        close(fd[--n]);
    EVENTUALLY(world_connections(w) == 0);
}

/* Readers that take nothing: a full queue is cut off at once, a stuck send after 10 s, of a stream
 * as of a plain answer. */
static void test_slow_readers(void **state)
{
    struct world *w = *state;
    char err[256];
    const int full = h2_connect(w->path), stuck = h2_connect(w->path);
    const int plain = h2_connect(w->path);
    assert_true(h2_hello(full) && h2_open(full, 1, M_FLOW, false));
    assert_true(h2_message(full, 1, "400 4000", 8));
    EVENTUALLY(count_of(&w->refused) == 1);
    assert_true(h2_ends(full, 2000));
    assert_true(h2_hello(stuck) && h2_open(stuck, 1, M_FLOW, false));
    assert_true(h2_message(stuck, 1, "200 4000", 8)); /* more than the window of 64 KiB */
    assert_true(h2_hello(plain) && h2_open(plain, 1, M_BIG, false)); /* the same */
    assert_true(h2_message(plain, 1, "", 0));
    usleep(200000);
    assert_int_equal(world_connections(w), 2);
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(call(conn, M_ECHO, "others are served", 5000, NULL, err), EPD_OK);
    table()->close(conn);
    for (int i = 0; i < 13 * slow() && world_connections(w) > 0; i++)
        sleep(1);
    assert_int_equal(world_connections(w), 0);
    assert_int_equal(count_of(&w->flows), 0);
    close(full), close(stuck), close(plain);
}

static void test_rapid_reset(void **state)
{
    struct world *w = *state;
    char err[256];
    const int fd = h2_connect(w->path);
    uint32_t stream = 1;
    assert_true(h2_hello(fd));
    for (; stream < 80001; stream += 2)
        if (!h2_open(fd, stream, M_ECHO, false) ||
            !h2_frame(fd, H2_RST_STREAM, 0, stream, "\0\0\0\x08", 4))
            break;
    assert_true(stream < 80001);
    close(fd);
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(call(conn, M_ECHO, "others are served", 5000, NULL, err), EPD_OK);
    table()->close(conn);
}

/* ---- many ---- */

static unsigned g_spare;
static void lower_descriptors(struct world *w)
{
    struct rlimit limit;
    (void)w;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = count_fds() + g_spare;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Connections come while descriptors are short by one, two, ...: whatever step fails, it is undone,
 * and the server goes on. */
static void test_no_descriptors(void **state)
{
    struct world *w = *state;
    struct rlimit old;
    int fd[4];
    char err[256];
    struct epd_rpc_conn *conn = open_path(w->path);
    assert_int_equal(call(conn, M_ECHO, "x", 5000, NULL, err), EPD_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    const unsigned before = count_fds();
    for (g_spare = 0; g_spare < 8; g_spare++) {
        for (unsigned i = 0; i < 4; i++)
            fd[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        world_do(w, lower_descriptors);
        for (unsigned i = 0; i < 4; i++)
            assert_true(h2_connect_fd(fd[i], w->path));
        usleep(20000);
        assert_int_equal(call(conn, M_ECHO, "meanwhile", 5000, NULL, err), EPD_OK);
        for (unsigned i = 0; i < 4; i++)
            close(fd[i]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        EVENTUALLY(world_connections(w) == 1);
    }
    struct epd_rpc_conn *again = open_path(w->path);
    assert_int_equal(call(again, M_ECHO, "again", 5000, NULL, err), EPD_OK);
    table()->close(again);
    EVENTUALLY(count_fds() <= before);
    table()->close(conn);
}

/* Programs of their own: this one, started again. --stream: until it is killed.
 */
static int client_main(const char *path, bool streams)
{
    char err[256], out[256], want[64];
    struct epd_rpc_conn *conn = open_path(path);
    snprintf(want, sizeof(want), "%d %u", (int)getpid(), (unsigned)getuid());
    if (streams) {
        struct epd_rpc_stream *stream = open_stream(conn, "5 100");
        for (int i = 0; i < 5; i++)
            next(stream, 100, i);
        for (;;)
            pause();
    }
    for (unsigned i = 0; i < 20; i++) {
        if (call(conn, M_WHOAMI, "abc", 60000, out, err) != EPD_OK || strcmp(out, want) != 0) {
            fprintf(stderr, "client: %s, %s\n", err, out);
            return 1;
        }
    }
    table()->close(conn);
    return 0;
}

static pid_t start_client(const char *path, const char *kind)
{
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "client", kind, path, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

static void test_many_clients(void **state)
{
    struct world *w = *state;
    enum { N = 64 };
    pid_t pids[N];
    const unsigned before = count_fds();
    for (unsigned i = 0; i < N; i++)
        pids[i] = start_client(w->path, "--calls");
    for (unsigned i = 0; i < N; i++) {
        int code;
        assert_int_equal(waitpid(pids[i], &code, 0), pids[i]);
        assert_int_equal(code, 0);
    }
    EVENTUALLY(world_connections(w) == 0);
    EVENTUALLY(count_fds() <= before + 1); /* last_fd */
}

static void test_killed_clients(void **state)
{
    struct world *w = *state;
    enum { N = 16 };
    pid_t pids[N];
    const unsigned before = count_fds();
    for (unsigned i = 0; i < N; i++)
        pids[i] = start_client(w->path, "--stream");
    EVENTUALLY(count_of(&w->flows) == N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(kill(pids[i], SIGKILL), 0);
        assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
    }
    EVENTUALLY(count_of(&w->flows) == 0);
    EVENTUALLY(world_connections(w) == 0);
    EVENTUALLY(count_fds() <= before + 1); /* last_fd */
}

/* ---- the end ---- */

struct held_call {
    struct epd_rpc_conn *conn;
    int status;
    char out[256], err[256];
};
static void *hold_main(void *arg)
{
    struct held_call *h = arg;
    h->status = call(h->conn, M_HOLD, "x", 20000, h->out, h->err);
    return NULL;
}
static bool g_holding;
static void job_look(struct world *w)
{
    g_holding = w->held != NULL;
}
static void job_drain_then_answer(struct world *w)
{
    struct epd_rpc_call *held = w->held;
    job_drain(w);
    w->held = NULL;
    epd_rpc_call_reply(held, (const uint8_t *)"in time", 7);
    epd_rpc_call_unref(held);
}

/* An answer within the grace arrives, a stream is told, and what is not answered is cancelled. */
static void drain_with(struct world *w, bool answer)
{
    uint8_t *msg = NULL;
    size_t len;
    char err[256];
    pthread_t thread;
    struct held_call h = {.conn = open_path(w->path)};
    struct epd_rpc_conn *other = open_path(w->path);
    struct epd_rpc_stream *stream = open_stream(other, "1 1");
    next(stream, 1, 0);
    assert_int_equal(pthread_create(&thread, NULL, hold_main, &h), 0);
    for (g_holding = false; !g_holding; usleep(1000))
        world_do(w, job_look);
    world_do(w, answer ? job_drain_then_answer : job_drain);
    w->drained = true;
    assert_int_equal(table()->stream_next(stream, 5 * SECOND, &msg, &len, err, sizeof(err)),
                     EPD_EDRAINING);
    (void)pthread_join(thread, NULL);
    assert_int_equal(h.status == EPD_OK, answer);
    if (answer)
        assert_string_equal(h.out, "in time");
    assert_int_equal(call(other, M_ECHO, "x", 200, NULL, err) == EPD_OK, false);
    table()->stream_close(stream);
    table()->close(other);
    table()->close(h.conn);
}
static void test_drain_answered(void **state)
{
    drain_with(*state, true);
}
static void test_drain_cancelled(void **state)
{
    struct world *w = *state;
    drain_with(w, false);
    EVENTUALLY(count_of(&w->cancelled) == 1);
}

int main(int argc, char **argv)
{
    if (argc == 3 && argv[1][0] == '-')
        return client_main(argv[2], strcmp(argv[1], "--stream") == 0);
#define PLAIN(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define GUARDED(name) cmocka_unit_test_setup_teardown(name, setup_guarded, teardown)
    const struct CMUnitTest tests[] = {
        PLAIN(test_unary),
        GUARDED(test_unary),
        PLAIN(test_size),
        GUARDED(test_size),
        PLAIN(test_deadline),
        PLAIN(test_stream),
        GUARDED(test_stream),
        PLAIN(test_never_twice),
        cmocka_unit_test(test_idle),
        PLAIN(test_no_message),
        PLAIN(test_calls_of_one_user),
        PLAIN(test_connections_of_one_user),
        PLAIN(test_slow_readers),
        GUARDED(test_slow_readers),
        GUARDED(test_rapid_reset),
        PLAIN(test_no_descriptors),
        GUARDED(test_no_descriptors),
        PLAIN(test_many_clients),
        GUARDED(test_many_clients),
        PLAIN(test_killed_clients),
        GUARDED(test_killed_clients),
        PLAIN(test_drain_answered),
        GUARDED(test_drain_answered),
        PLAIN(test_drain_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
