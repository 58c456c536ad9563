#include "daemon/ipc/fdpass.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static int g_pair[2];

static int setup(void **state)
{
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, g_pair);
}
static int teardown(void **state)
{
    (void)state;
    epd_close_fd(&g_pair[0]);
    epd_close_fd(&g_pair[1]);
    return 0;
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}
static int open_null(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void descriptors_are_the_same_files(void **state)
{
    (void)state;
    struct epd_error err;
    int pipes[2], fds[EPD_FDPASS_MAX];
    char buf[64];
    size_t len = 0;
    unsigned n = 0;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(epd_fd_send(g_pair[0], "hello", 5, pipes, 2, &err), EPD_OK);
    assert_int_equal(epd_fd_send(g_pair[0], "none", 4, NULL, 0, &err), EPD_OK);
    epd_close_fd(&pipes[0]);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, fds, EPD_FDPASS_MAX, &n, &err),
                     EPD_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(buf, "hello", 5);
    assert_int_equal(n, 2);
    assert_true((fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(write(pipes[1], "x", 1), 1);
    assert_int_equal(read(fds[0], buf, 1), 1);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, NULL, 0, &n, &err), EPD_OK);
    assert_true(len == 4 && n == 0);
    epd_close_fd(&pipes[1]);
    epd_close_fd(&fds[0]);
    epd_close_fd(&fds[1]);
}

static void sixteen_fit_and_no_more(void **state)
{
    (void)state;
    struct epd_error err;
    int fds[EPD_FDPASS_MAX + 1], got[EPD_FDPASS_MAX];
    char buf[8];
    size_t len;
    unsigned n;
    for (unsigned i = 0; i <= EPD_FDPASS_MAX; i++)
        fds[i] = open_null();
    assert_int_equal(epd_fd_send(g_pair[0], "a", 1, fds, EPD_FDPASS_MAX + 1, &err), EPD_EINVAL);
    assert_int_equal(epd_fd_send(g_pair[0], "a", 1, fds, EPD_FDPASS_MAX, &err), EPD_OK);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, EPD_FDPASS_MAX, &n, &err),
                     EPD_OK);
    assert_int_equal(n, EPD_FDPASS_MAX);
    for (unsigned i = 0; i <= EPD_FDPASS_MAX; i++) {
        epd_close_fd(&fds[i]);
        if (i < n)
            epd_close_fd(&got[i]);
    }
}

/* What does not fit is refused whole, and nothing of it stays open. */
static void too_large_leaks_nothing(void **state)
{
    (void)state;
    struct epd_error err;
    int fds[4] = {open_null(), open_null(), open_null(), open_null()}, got[4];
    char buf[8];
    size_t len = 99;
    unsigned n = 99;
    const unsigned before = open_descriptors();
    for (unsigned cap = 0; cap < 4; cap++) {
        assert_int_equal(epd_fd_send(g_pair[0], "a", 1, fds, 4, &err), EPD_OK);
        assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, cap, &n, &err),
                         EPD_EINVAL);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(epd_fd_send(g_pair[0], "123456789", 9, fds, 4, &err), EPD_OK);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, 4, &n, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "larger than 8 bytes"));
    assert_int_equal(open_descriptors(), before);
    assert_true(len == 99 && n == 99); /* outputs only on success */
    for (unsigned i = 0; i < 4; i++)
        epd_close_fd(&fds[i]);
}

/* Control messages that our sender never makes: two in one datagram, 40 descriptors. */
static void foreign_senders_leak_nothing(void **state)
{
    (void)state;
    union {
        char bytes[CMSG_SPACE(40 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {(char[]){"x"}, 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    int fds[40], null = open_null(), got[EPD_FDPASS_MAX];
    char buf[8];
    size_t len;
    unsigned n;
    struct epd_error err;
    for (unsigned i = 0; i < 40; i++)
        fds[i] = null;
    *c = (struct cmsghdr){CMSG_LEN(sizeof(fds)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(c), fds, sizeof(fds));
    const unsigned before = open_descriptors();
    assert_int_equal(sendmsg(g_pair[0], &msg, 0), 1);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, EPD_FDPASS_MAX, &n, &err),
                     EPD_EINVAL);
    assert_non_null(strstr(err.message, "lost descriptors"));
    assert_int_equal(open_descriptors(), before);
    epd_close_fd(&null);
}

static void descriptor_limit_is_an_error(void **state)
{
    (void)state;
    struct rlimit old, low;
    struct epd_error err;
    int null = open_null(), got[2];
    char buf[8];
    size_t len;
    unsigned n;
    assert_int_equal(epd_fd_send(g_pair[0], "a", 1, (int[]){null, null}, 2, &err), EPD_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)null + 1; /* every lower number is taken */
    const unsigned before = open_descriptors();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    enum epd_status status = epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, 2, &n, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, EPD_EINVAL);
    assert_int_equal(open_descriptors(), before);
    epd_close_fd(&null);
}

static void ends_are_told_apart(void **state)
{
    (void)state;
    struct epd_error err;
    char buf[8], big[4096] = "";
    size_t len;
    unsigned n, sent = 0;
    enum epd_status status;
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, NULL, 0, &n, &err), EPD_EAGAIN);
    while ((status = epd_fd_send(g_pair[0], big, sizeof(big), NULL, 0, &err)) == EPD_OK)
        sent++;
    assert_true(status == EPD_EAGAIN && sent > 0);
    epd_close_fd(&g_pair[1]);
    assert_int_equal(epd_fd_send(g_pair[0], "a", 1, NULL, 0, &err), EPD_ESESSIONLOST);
    status = epd_fd_recv(g_pair[0], buf, sizeof(buf), &len, NULL, 0, &n, &err);
    assert_int_equal(status, EPD_ESESSIONLOST);
}

/* A child sends and is killed: what it sent arrives, then the end. */
static void killed_sender(void **state)
{
    (void)state;
    struct epd_error err;
    int got[2], status = 0;
    char buf[8];
    size_t len;
    unsigned n;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open_null();
        (void)epd_fd_send(g_pair[0], "bye", 3, &null, 1, NULL);
        _exit(0);
    }
    epd_close_fd(&g_pair[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, 2, &n, &err), EPD_OK);
    assert_true(len == 3 && n == 1);
    epd_close_fd(&got[0]);
    assert_int_equal(epd_fd_recv(g_pair[1], buf, sizeof(buf), &len, got, 2, &n, &err),
                     EPD_ESESSIONLOST);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(descriptors_are_the_same_files),
        T(sixteen_fit_and_no_more),
        T(too_large_leaks_nothing),
        T(foreign_senders_leak_nothing),
        T(descriptor_limit_is_an_error),
        T(ends_are_told_apart),
        T(killed_sender),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
