/* libepd-rpc's table against a hand-made gRPC server: what a good daemon never sends. */
/* test-timeout: 60 */
#include "tests/unit/rpc/calls.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "tests/unit/rpc/http2.h"

#define PATH "/t.T/M"
#define FRAME_HEADER 9u
#define MESSAGE_HEADER 5u
#define KEPT 1024u /* requests kept for the echo, by stream */
#define ACK 1u

/* What the server answers. */
struct answer {
    int code;          /* gRPC's */
    const char *error; /* trailer "epd-error-bin"; NULL: none */
    size_t error_len;
    const char *message; /* NULL: none; "": the request */
    unsigned messages;
    bool silent;
};

struct fake {
    char dir[40], path[80];
    int fd;
    pthread_t thread;
    const struct answer *answer; /* atomic */
    uint8_t kept[KEPT][64], kept_len[KEPT];
};

static size_t put_header(uint8_t *to, const char *name, const char *value, size_t len)
{
    const size_t name_len = strlen(name);
    size_t n = 0;
    to[n++] = 0; /* literal, not indexed */
    to[n++] = (uint8_t)name_len;
    memcpy(to + n, name, name_len);
    n += name_len;
    to[n++] = (uint8_t)len; /* < 127 */
    memcpy(to + n, value, len);
    return n + len;
}

static void send_trailers(int fd, uint32_t stream, const struct answer *a)
{
    uint8_t block[512];
    char code[8], raw[120] = {0}; /* a leading 0: not base64 */
    size_t n =
        put_header(block, "grpc-status", code, (size_t)snprintf(code, sizeof(code), "%d", a->code));
    n += put_header(block + n, "grpc-message", "why", 3);
    if (a->error != NULL) {
        memcpy(raw + 1, a->error, a->error_len);
        n += put_header(block + n, "epd-error-bin", raw, a->error_len + 1);
    }
    (void)h2_frame(fd, H2_HEADERS, H2_END_STREAM | H2_END_HEADERS, stream, block, n);
}

static void answer(struct fake *f, int fd, uint32_t stream)
{
    static const char head[] = "\x88\x0f\x10\x10" /* 200, content-type */
                               "application/grpc";
    const struct answer *a = __atomic_load_n(&f->answer, __ATOMIC_SEQ_CST);
    const uint32_t at = stream / 2 % KEPT;
    if (a->silent)
        return;
    (void)h2_frame(fd, H2_HEADERS, H2_END_HEADERS, stream, head, sizeof(head) - 1);
    for (unsigned i = 0; a->message != NULL && i < a->messages; i++) {
        uint8_t bytes[MESSAGE_HEADER + 64] = {0};
        size_t len = strlen(a->message);
        if (len > 0)
            memcpy(bytes + MESSAGE_HEADER, a->message, len);
        else
            memcpy(bytes + MESSAGE_HEADER, f->kept[at], len = f->kept_len[at]);
        bytes[4] = (uint8_t)len;
        (void)h2_frame(fd, H2_DATA, 0, stream, bytes, MESSAGE_HEADER + len);
    }
    send_trailers(fd, stream, a);
}

/* One frame of the client; false: the connection is over. */
static bool serve_frame(struct fake *f, int fd)
{
    uint8_t h[FRAME_HEADER], payload[16384];
    if (recv(fd, h, sizeof(h), MSG_WAITALL) != (ssize_t)sizeof(h))
        return false;
    const size_t len = (size_t)h[0] << 16 | (size_t)h[1] << 8 | h[2];
    const uint32_t stream = (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8];
    if (len > sizeof(payload) || (len > 0 && recv(fd, payload, len, MSG_WAITALL) != (ssize_t)len))
        return false;
    if ((h[3] == H2_SETTINGS || h[3] == H2_PING) && (h[4] & ACK) == 0)
        return h2_frame(fd, h[3], ACK, 0, payload, h[3] == H2_PING ? len : 0);
    if (h[3] != H2_DATA)
        return true;
    const uint32_t at = stream / 2 % KEPT;
    if (len >= MESSAGE_HEADER && len - MESSAGE_HEADER <= sizeof(f->kept[at])) {
        f->kept_len[at] = (uint8_t)(len - MESSAGE_HEADER);
        memcpy(f->kept[at], payload + MESSAGE_HEADER, f->kept_len[at]);
    }
    if ((h[4] & H2_END_STREAM) != 0)
        answer(f, fd, stream);
    return true;
}

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    for (;;) {
        uint8_t preface[24];
        const int fd = accept(f->fd, NULL, NULL);
        if (fd < 0)
            return NULL; /* shut down */
        if (h2_frame(fd, H2_SETTINGS, 0, 0, NULL, 0) &&
            recv(fd, preface, sizeof(preface), MSG_WAITALL) == (ssize_t)sizeof(preface))
            while (serve_frame(f, fd)) {
            }
        close(fd);
    }
}

static void fake_listen(struct fake *f)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", f->path);
    f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(f->fd, 64), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

static void set_answer(struct fake *f, const struct answer *a)
{
    __atomic_store_n(&f->answer, a, __ATOMIC_SEQ_CST);
}

/* Not listening yet. */
static int setup_absent(void **state)
{
    struct fake *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    strcpy(f->dir, "/tmp/epd-table-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/s", f->dir);
    f->fd = -1;
    *state = f;
    return 0;
}
static int setup(void **state)
{
    (void)setup_absent(state);
    fake_listen(*state);
    return 0;
}
/* Connections are closed before. */
static int teardown(void **state)
{
    struct fake *f = *state;
    if (f->fd >= 0) {
        (void)shutdown(f->fd, SHUT_RDWR);
        (void)pthread_join(f->thread, NULL);
        close(f->fd);
        (void)unlink(f->path);
    }
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- statuses ---- */

/* Without a status of ours, gRPC's is translated, and its text kept. */
static void test_codes(void **state)
{
    static const int map[][2] = {
        {1, EPD_ECANCELED},  {2, EPD_EINTERNAL},     {3, EPD_EINVAL},     {4, EPD_ETIMEDOUT},
        {5, EPD_ENOENT},     {7, EPD_EPERM},         {8, EPD_ELIMIT},     {12, EPD_EUNSUPPORTED},
        {13, EPD_EINTERNAL}, {14, EPD_EUNREACHABLE}, {16, EPD_EINTERNAL},
    };
    struct fake *f = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(f->path);
    for (unsigned i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        const struct answer a = {.code = map[i][0]};
        set_answer(f, &a);
        assert_int_equal(call(conn, PATH, "x", 5000, NULL, err), map[i][1]);
        assert_string_equal(err, "why");
    }
    table()->close(conn);
}

/* The daemon's own status, when it can be read; whatever comes, never "ok" and no crash. */
static void test_errors(void **state)
{
#define BYTES(text) (text), sizeof(text) - 1
    static const struct {
        const char *bytes;
        size_t len;
        int status;
        const char *message;
    } cases[] = {
        {BYTES("\x08\x0b\x12\x04seat"), EPD_EBUSY, "seat"},
        {BYTES("\x12\x04seat\x08\x0b"), EPD_EBUSY, "seat"}, /* any order */
        {BYTES("\x08\x3d"), EPD_ERANKLOST, "why"},          /* no message: gRPC's */
        {BYTES("\x08\x0b\x12\x00"), EPD_EBUSY, ""},
        {BYTES(""), EPD_EINTERNAL, "why"},
        {BYTES("\x08"), EPD_EINTERNAL, "why"}, /* cut short */
        {BYTES("\x08\x80"), EPD_EINTERNAL, "why"},
        {BYTES("\x08\x00"), EPD_EINTERNAL, "why"},      /* "ok" in an error */
        {BYTES("\x08\x0c"), EPD_EINTERNAL, "why"},      /* +6 */
        {BYTES("\x08\x0b\x12\x7fx"), EPD_EBUSY, "why"}, /* 127 bytes, and has 1 */
        {BYTES("\x08\x0b\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"), EPD_EBUSY, "why"},
        {BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), EPD_EINTERNAL, "why"},
        {BYTES("\x08\x0b\x1a\x01x\x12\x04seat"), EPD_EBUSY, "why"}, /* an unknown field */
    };
    struct fake *f = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(f->path);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct answer a = {.code = 9, .error = cases[i].bytes, .error_len = cases[i].len};
        set_answer(f, &a);
        const int status = call(conn, PATH, "x", 5000, NULL, err);
        if (status != cases[i].status || strcmp(err, cases[i].message) != 0)
            fail_msg("case %u: %d \"%s\"", i, status, err);
    }
    table()->close(conn);
}

/* A message longer than the caller's buffer is cut, with its end. */
static void test_small_buffer(void **state)
{
    static const struct answer a = {
        .code = 9, .error = "\x08\x0b\x12\x0aseat three", .error_len = 14};
    struct fake *f = *state;
    char err[16];
    uint8_t *resp = NULL;
    size_t len;
    struct epd_rpc_conn *conn = open_path(f->path);
    set_answer(f, &a);
    memset(err, '#', sizeof(err));
    assert_int_equal(table()->unary(conn, PATH, NULL, 0, 5 * SECOND, &resp, &len, err, 5),
                     EPD_EBUSY);
    assert_memory_equal(err, "seat\0###########", sizeof(err));
    assert_null(resp);
    table()->close(conn);
}

/* ---- calls ---- */

static void test_no_answer(void **state)
{
    static const struct answer empty = {.code = 0}, silent = {.silent = true};
    struct fake *f = *state;
    char err[256];
    struct epd_rpc_conn *conn = open_path(f->path);
    set_answer(f, &empty); /* OK, but no message */
    assert_int_equal(call(conn, PATH, "x", 5000, NULL, err), EPD_EINTERNAL);
    assert_true(err[0] != 0);
    set_answer(f, &silent);
    const int64_t before = now_ms();
    assert_int_equal(call(conn, PATH, "x", 100, NULL, err), EPD_ETIMEDOUT);
    const int64_t took = now_ms() - before;
    assert_true(took >= 90 && took < 2000 * slow());
    table()->close(conn);
}

/* No daemon: an error at once, not after the timeout. One that appears later is found. */
static void test_absent(void **state)
{
    static const struct answer echo = {.message = "", .messages = 1};
    struct fake *f = *state;
    char err[256], out[256];
    struct epd_rpc_conn *conn = open_path(f->path);
    const int64_t before = now_ms();
    assert_int_equal(call(conn, PATH, "x", 20000, NULL, err), EPD_EUNREACHABLE);
    assert_true(now_ms() - before < 5000 * slow());
    assert_true(err[0] != 0);
    set_answer(f, &echo);
    fake_listen(f);
    EVENTUALLY(call(conn, PATH, "here", 5000, out, err) == EPD_OK);
    assert_string_equal(out, "here");
    table()->close(conn);
}

struct caller {
    struct epd_rpc_conn *conn;
    unsigned id, wrong;
    pthread_t thread;
};
static void *caller_main(void *arg)
{
    struct caller *c = arg;
    char text[32], out[256], err[256];
    for (unsigned i = 0; i < 50; i++) {
        snprintf(text, sizeof(text), "caller %u call %u", c->id, i);
        if (call(c->conn, PATH, text, 20000, out, err) != EPD_OK || strcmp(out, text) != 0)
            c->wrong++;
    }
    return NULL;
}

/* One connection, many threads: everybody gets the answer to his own question. */
static void test_threads(void **state)
{
    static const struct answer echo = {.message = "", .messages = 1};
    struct fake *f = *state;
    struct caller callers[8];
    struct epd_rpc_conn *conn = open_path(f->path);
    set_answer(f, &echo);
    for (unsigned i = 0; i < 8; i++) {
        callers[i] = (struct caller){.conn = conn, .id = i};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, caller_main, &callers[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        (void)pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].wrong, 0);
    }
    table()->close(conn);
}

/* ---- streams ---- */

/* The messages, then how it ended, and that again for who asks again. */
static void stream_ends(struct fake *f, const struct answer *a, int want)
{
    struct epd_rpc_conn *conn = open_path(f->path);
    struct epd_rpc_stream *stream = NULL;
    char err[256];
    uint8_t *msg = NULL;
    size_t len = 0;
    set_answer(f, a);
    assert_int_equal(table()->stream_open(conn, PATH, (const uint8_t *)"x", 1, &stream, err, 256),
                     EPD_OK);
    for (unsigned i = 0; i < a->messages; i++) {
        assert_int_equal(table()->stream_next(stream, 5 * SECOND, &msg, &len, err, 256), EPD_OK);
        assert_int_equal(len, strlen(a->message));
        assert_memory_equal(msg, a->message, len);
        table()->free_bytes(msg);
    }
    assert_int_equal(table()->stream_next(stream, 5 * SECOND, &msg, &len, err, 256), want);
    assert_int_equal(table()->stream_next(stream, 5 * SECOND, &msg, &len, err, 256), EPD_ECANCELED);
    table()->stream_close(stream);
    table()->close(conn);
}

static void test_streams(void **state)
{
    static const struct answer ended = {.message = "event", .messages = 3};
    static const struct answer none = {.code = 0};
    static const struct answer failed = {.code = 14,
                                         .message = "event",
                                         .messages = 2,
                                         .error = "\x08\x57\x12\x05later",
                                         .error_len = 9};
    stream_ends(*state, &ended, EPD_ECANCELED);
    stream_ends(*state, &none, EPD_ECANCELED);
    stream_ends(*state, &failed, EPD_EDRAINING);
}

/* Closing does not wait for a server that says nothing. */
static void test_stream_silent(void **state)
{
    static const struct answer silent = {.silent = true};
    struct fake *f = *state;
    struct epd_rpc_conn *conn = open_path(f->path);
    struct epd_rpc_stream *stream = NULL;
    char err[256];
    uint8_t *msg = NULL;
    size_t len;
    set_answer(f, &silent);
    assert_int_equal(table()->stream_open(conn, PATH, NULL, 0, &stream, err, 256), EPD_OK);
    for (unsigned i = 0; i < 3; i++) /* usable after each */
        assert_int_equal(table()->stream_next(stream, SECOND / 20, &msg, &len, err, 256),
                         EPD_ETIMEDOUT);
    const int64_t before = now_ms();
    table()->stream_close(stream);
    assert_true(now_ms() - before < 2000 * slow());
    table()->close(conn);
}

static void test_nothing(void **state)
{
    (void)state;
    table()->close(NULL);
    table()->stream_close(NULL);
    table()->free_bytes(NULL);
    assert_int_equal(table()->abi, EPD_RPC_TABLE_ABI);
    assert_int_equal(table()->size, sizeof(struct epd_rpc_table));
}

int main(void)
{
#define SERVED(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),
        SERVED(test_codes),
        SERVED(test_errors),
        SERVED(test_small_buffer),
        SERVED(test_no_answer),
        cmocka_unit_test_setup_teardown(test_absent, setup_absent, teardown),
        SERVED(test_threads),
        SERVED(test_streams),
        SERVED(test_stream_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
