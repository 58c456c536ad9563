/* The frame guard between hand-made HTTP/2 clients and a hand-made gRPC end: no gRPC here. */
/* test-timeout: 60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/rpc/guard.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6 };
enum { END_STREAM = 1 };

struct ends {
    struct epd_guard *guard;
    int client, grpc;
};

static int scale(void)
{
    const char *slow = getenv("EPD_TEST_SLOW");
    return slow != NULL && atoi(slow) > 0 ? atoi(slow) : 1;
}

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static void join(struct ends *e)
{
    int pair[2];
    struct epd_error err = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    e->client = pair[0];
    if (epd_guard_add(e->guard, &pair[1], &e->grpc, &err) != EPD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(pair[1], -1);
}

static int setup(void **state)
{
    struct ends *e = calloc(1, sizeof(*e));
    struct epd_error err = {0};
    assert_non_null(e);
    assert_int_equal(epd_guard_create(&e->guard, &err), EPD_OK);
    join(e);
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    struct ends *e = *state;
    epd_guard_destroy(e->guard);
    epd_close_fd(&e->client);
    epd_close_fd(&e->grpc);
    free(e);
    return 0;
}

/* 1: readable or ended, 0: nothing within ms. */
static bool wait_readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms * scale()) == 1;
}

static size_t receive(int fd, void *to, size_t len)
{
    size_t got = 0;
    while (got < len && wait_readable(fd, 5000)) {
        const ssize_t n = recv(fd, (char *)to + got, len - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
        got += n > 0 ? (size_t)n : 0;
    }
    return got;
}

/* Reads on until the end of the connection; false when it does not come. */
static bool ends_within(int fd, int ms)
{
    char sink[65536];
    while (wait_readable(fd, ms)) {
        const ssize_t n = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return true;
    }
    return false;
}

static bool put(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* A frame with a payload of zeros. */
static bool frame(int fd, uint8_t type, uint8_t flags, uint32_t stream, uint32_t len)
{
    uint8_t bytes[9 + 20000] = {(uint8_t)(len >> 16),
                                (uint8_t)(len >> 8),
                                (uint8_t)len,
                                type,
                                flags,
                                (uint8_t)(stream >> 24),
                                (uint8_t)(stream >> 16),
                                (uint8_t)(stream >> 8),
                                (uint8_t)stream};
    assert_true(len <= sizeof(bytes) - 9);
    return put(fd, bytes, 9 + len);
}

/* The gRPC end, as far as it matters: reads everything, so that the client is never held up. */
static void drain(int fd)
{
    char sink[65536];
    while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
    }
}

static void hello(struct ends *e)
{
    assert_true(put(e->client, PREFACE, 24));
    assert_true(frame(e->client, SETTINGS, 0, 0, 0));
    char got[33];
    assert_int_equal(receive(e->grpc, got, sizeof(got)), sizeof(got));
    assert_memory_equal(got, PREFACE, 24);
}

/* Bytes go both ways unchanged, in whatever pieces they come. */
static void test_transparent(void **state)
{
    struct ends *e = *state;
    enum { TOTAL = 9 + 16384 };
    uint8_t out[TOTAL] = {0, 0x40, 0, DATA, 0, 0, 0, 0, 1}, in[TOTAL];
    for (size_t i = 9; i < TOTAL; i++)
        out[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < 24; i++)
        assert_true(put(e->client, &PREFACE[i], 1));
    assert_int_equal(receive(e->grpc, in, 24), 24);
    for (size_t at = 0, step = 1; at < TOTAL; at += step, step = step * 3 % 1009 + 1) {
        step = step < TOTAL - at ? step : TOTAL - at;
        assert_true(put(e->client, out + at, step));
    }
    assert_int_equal(receive(e->grpc, in, TOTAL), TOTAL);
    assert_memory_equal(in, out, TOTAL);
    assert_true(put(e->grpc, out, TOTAL));
    assert_int_equal(receive(e->client, in, TOTAL), TOTAL);
    assert_memory_equal(in, out, TOTAL);
    assert_int_equal(epd_guard_cut(e->guard), 0);
}

/* More than all buffers on the way hold: nothing is lost while the reader sleeps. */
static void test_back_pressure(void **state)
{
    struct ends *e = *state;
    enum { FRAME = 9 + 16384, FRAMES = 400 };
    uint8_t out[FRAME] = {0, 0x40, 0, DATA, 0, 0, 0, 0, 1}, in[FRAME];
    hello(e);
    size_t sent = 0, got = 0;
    for (unsigned stuck = 0; stuck < 20;) { /* fill everything up */
        memset(out + 9, (int)(sent / FRAME), FRAME - 9);
        const ssize_t n =
            send(e->grpc, out + sent % FRAME, FRAME - sent % FRAME, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            assert_int_equal(errno, EAGAIN);
            stuck++;
            usleep(5000);
        } else
            sent += (size_t)n;
    }
    assert_true(sent < (size_t)FRAME * FRAMES); /* it is bounded */
    const size_t rest = sent % FRAME == 0 ? 0 : FRAME - sent % FRAME;
    for (unsigned i = 0; got < sent; i++) {
        const size_t want = sent - got < FRAME ? sent - got : FRAME;
        assert_int_equal(receive(e->client, in, want), want);
        for (size_t k = 9; k < want; k += 997)
            assert_int_equal(in[k], (uint8_t)i);
        got += want;
    }
    if (rest > 0)
        assert_true(put(e->grpc, out + FRAME - rest, rest));
    assert_int_equal(receive(e->client, in, rest), rest);
}

static void test_ends_pass_through(void **state)
{
    struct ends *e = *state;
    hello(e);
    epd_close_fd(&e->client);
    assert_true(ends_within(e->grpc, 5000));
    epd_close_fd(&e->grpc);
    join(e);
    hello(e);
    assert_true(put(e->grpc, "last words", 10)); /* as of a GOAWAY */
    epd_close_fd(&e->grpc);
    char got[10];
    assert_int_equal(receive(e->client, got, sizeof(got)), sizeof(got));
    assert_memory_equal(got, "last words", 10);
    assert_true(ends_within(e->client, 5000));
    assert_int_equal(epd_guard_cut(e->guard), 0);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fill_up(int fd)
{
    char zeros[16384] = {0};
    for (unsigned stuck = 0; stuck < 20;) {
        if (send(fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            stuck++;
            usleep(5000);
        }
    }
}

/* gRPC gives up on a client that has stopped reading: no spinning, and not for ever. */
static void test_hang_up_while_full(void **state)
{
    struct ends *e = *state;
    const unsigned with_both = count_fds();
    hello(e);
    fill_up(e->grpc);
    epd_close_fd(&e->grpc); /* the client does not read */
    const uint64_t cpu = cpu_ns();
    for (unsigned i = 0; i < 600 && count_fds() > with_both - 3; i++)
        usleep(10000);
    assert_int_equal(count_fds(), with_both - 3); /* gRPC's end and both of the relay */
    assert_true(cpu_ns() - cpu < 1000000000ull * (unsigned)scale());
}

/* What the client did not read yet is still delivered when it wakes up soon. */
static void test_linger(void **state)
{
    struct ends *e = *state;
    hello(e);
    fill_up(e->grpc);
    assert_int_equal(shutdown(e->grpc, SHUT_WR), 0);
    usleep(100000);
    size_t got = 0;
    char sink[65536];
    for (ssize_t n; wait_readable(e->client, 5000);) {
        n = recv(e->client, sink, sizeof(sink), 0);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    assert_true(got > 200000);
    assert_int_equal(got % 4096, 0); /* up to the last byte: fill_up writes whole pages */
}

static void test_not_http2(void **state)
{
    struct ends *e = *state;
    assert_true(put(e->client, "GET / HTTP/1.1\r\n", 16));
    assert_true(ends_within(e->client, 2000));
    assert_true(ends_within(e->grpc, 2000));
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

static void test_silence(void **state)
{
    struct ends *e = *state;
    assert_true(put(e->client, PREFACE, 10)); /* and nothing more */
    assert_false(ends_within(e->client, 3000 / scale()));
    assert_true(ends_within(e->client, 4000));
    epd_close_fd(&e->client);
    epd_close_fd(&e->grpc);
    join(e);
    hello(e);
    assert_false(ends_within(e->client, 6500 / scale())); /* this one has said hello */
}

static void test_frame_size(void **state)
{
    struct ends *e = *state;
    hello(e);
    assert_true(frame(e->client, DATA, 0, 1, 16384));
    assert_false(ends_within(e->client, 100));
    drain(e->grpc);
    (void)frame(e->client, DATA, 0, 1, 16385);
    assert_true(ends_within(e->client, 2000));
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

static void test_too_many_streams(void **state)
{
    struct ends *e = *state;
    hello(e);
    for (uint32_t i = 0; i < 1024; i++) {
        assert_true(frame(e->client, HEADERS, 4, 2 * i + 1, 1));
        drain(e->grpc);
    }
    assert_false(ends_within(e->client, 100));
    (void)frame(e->client, HEADERS, 4, 2049, 1);
    assert_true(ends_within(e->client, 2000));
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

/* Ten times the limit one after the other is an honest client. */
static void test_streams_that_end(void **state)
{
    struct ends *e = *state;
    char got[9 + 1];
    hello(e);
    for (uint32_t i = 0; i < 10240; i++) {
        assert_true(frame(e->client, HEADERS, 4 | END_STREAM, 2 * i + 1, 1));
        assert_int_equal(receive(e->grpc, got, 10), 10);
        assert_true(frame(e->grpc, HEADERS, 4 | END_STREAM, 2 * i + 1, 1));
        assert_int_equal(receive(e->client, got, 10), 10);
    }
    assert_int_equal(epd_guard_cut(e->guard), 0);
}

/* Sends pairs until it is cut off; the number sent. */
static unsigned flood(struct ends *e, bool with_headers, uint8_t type, uint32_t len, unsigned limit)
{
    unsigned n = 0;
    for (uint32_t stream = 1; n < limit; stream += 2, n++) {
        if (with_headers && !frame(e->client, HEADERS, 4, stream, 1))
            break;
        if (!frame(e->client, type, 0, with_headers ? stream : 0, len))
            break;
        drain(e->grpc);
    }
    return n;
}

static void test_rapid_reset(void **state)
{
    struct ends *e = *state;
    hello(e);
    const unsigned n = flood(e, true, RST_STREAM, 4, 20000);
    assert_true(n >= 500 && n < 20000);
    assert_true(ends_within(e->client, 2000));
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

/* Streams that the server resets cost the same. */
static void test_resets_of_the_server(void **state)
{
    struct ends *e = *state;
    hello(e);
    unsigned n = 0;
    char got[13];
    for (uint32_t stream = 1; n < 20000; stream += 2, n++) {
        if (!frame(e->client, HEADERS, 4, stream, 1) || receive(e->grpc, got, 10) != 10 ||
            !frame(e->grpc, RST_STREAM, 0, stream, 4) || receive(e->client, got, 13) != 13)
            break;
    }
    assert_true(n >= 500 && n < 20000);
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

static void test_ping_flood(void **state)
{
    struct ends *e = *state;
    hello(e);
    const unsigned n = flood(e, false, PING, 8, 20000);
    assert_true(n >= 490 && n < 20000);
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

static void test_settings_flood(void **state)
{
    struct ends *e = *state;
    hello(e);
    const unsigned n = flood(e, false, SETTINGS, 0, 20000);
    assert_true(n >= 490 && n < 20000);
    assert_int_equal(epd_guard_cut(e->guard), 1);
}

/* Some clients measure the link with a ping for each piece of data that they get. */
static void test_pings_that_answer_data(void **state)
{
    struct ends *e = *state;
    char got[17];
    hello(e);
    for (unsigned i = 0; i < 3000; i++) {
        assert_true(frame(e->grpc, DATA, 0, 1, 8));
        assert_int_equal(receive(e->client, got, 17), 17);
        assert_true(frame(e->client, PING, 0, 0, 8));
        assert_int_equal(receive(e->grpc, got, 17), 17);
    }
    assert_int_equal(epd_guard_cut(e->guard), 0);
}

/* Connections that come while the relay's thread is busy: each is served, none is taken for silent.
 */
static void test_many_newcomers(void **state)
{
    struct ends *e = *state;
    const unsigned before = count_fds();
    for (unsigned round = 0; round < 200; round++) {
        struct ends many[16];
        for (unsigned i = 0; i < 16; i++) {
            many[i] = (struct ends){.guard = e->guard};
            join(&many[i]);
            assert_true(put(many[i].client, PREFACE, 24));
        }
        for (unsigned i = 0; i < 16; i++) {
            char got[24];
            assert_int_equal(receive(many[i].grpc, got, 24), 24);
            epd_close_fd(&many[i].client);
            epd_close_fd(&many[i].grpc);
        }
    }
    for (unsigned i = 0; i < 500 && count_fds() > before; i++)
        usleep(10000);
    assert_int_equal(count_fds(), before);
}

/* Without descriptors a connection is refused, and the guard goes on. */
static void test_no_descriptors(void **state)
{
    struct ends *e = *state;
    struct rlimit old, low;
    struct epd_error err = {0};
    int pair[2], inner = -1;
    hello(e);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)pair[1] + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    const int taken = pair[1];
    assert_int_equal(epd_guard_add(e->guard, &pair[1], &inner, &err), EPD_ELIMIT);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(pair[1], taken); /* still the caller's */
    assert_int_equal(epd_guard_add(e->guard, &pair[1], &inner, &err), EPD_OK);
    epd_close_fd(&inner);
    assert_true(ends_within(pair[0], 5000));
    epd_close_fd(&pair[0]);
}

/* Destroy while connections are open and full: all descriptors come back, soon. */
static void test_destroy(void **state)
{
    struct ends *e = *state;
    hello(e);
    fill_up(e->grpc);
    const unsigned before = count_fds();
    const uint64_t start = epd_now_ns();
    epd_guard_destroy(e->guard);
    e->guard = NULL;
    assert_true(epd_now_ns() - start < 1000000000ull * (unsigned)scale());
    assert_int_equal(count_fds(), before - 4); /* epoll, eventfd and the relay's two */
    assert_true(ends_within(e->client, 1000));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_transparent),
        TEST(test_back_pressure),
        TEST(test_ends_pass_through),
        TEST(test_hang_up_while_full),
        TEST(test_linger),
        TEST(test_not_http2),
        TEST(test_silence),
        TEST(test_frame_size),
        TEST(test_too_many_streams),
        TEST(test_streams_that_end),
        TEST(test_rapid_reset),
        TEST(test_resets_of_the_server),
        TEST(test_ping_flood),
        TEST(test_settings_flood),
        TEST(test_pings_that_answer_data),
        TEST(test_many_newcomers),
        TEST(test_no_descriptors),
        TEST(test_destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
