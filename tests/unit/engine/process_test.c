/* The program epd-engine: how it starts, sleeps and ends. EPD_BIN_DIR: where it is (build/bin). */
#define EPD_LOG_COMPONENT "unit"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/ipc/fdpass.h"
#include "daemon/ipc/memfd.h"
#include "daemon/ipc/peer.h"
#include "proto/engine.h"
#include "proto/status.h"
#include "proto/version.h"

struct engine {
    pid_t pid;
    int pidfd, sock;
    struct epd_status_page *page;
    uint64_t seq;
};

static char g_path[4096];

static unsigned slow(void)
{
    const char *text = getenv("EPD_TEST_SLOW");
    const int n = text != NULL ? atoi(text) : 1;
    return n > 0 ? (unsigned)n : 1;
}

/* sock: becomes fd 3; -1: none. What it prints goes to out_fd. */
static pid_t run(const char *arg, int sock, int out_fd)
{
    const int high = sock >= 0 ? fcntl(sock, F_DUPFD_CLOEXEC, 16) : -1;
    const pid_t pid = fork();
    if (pid != 0) {
        if (high >= 0)
            (void)close(high);
        assert_true(pid > 0);
        return pid;
    }
    if (out_fd >= 0 && (dup2(out_fd, 1) < 0 || dup2(out_fd, 2) < 0))
        _exit(99);
    (void)close(EPD_ENGINE_LOCK_FD);
    if (high < 0)
        (void)close(EPD_ENGINE_FD);
    else if (dup2(high, EPD_ENGINE_FD) < 0)
        _exit(99);
    (void)execl(g_path, "epd-engine", arg, (char *)NULL);
    _exit(99);
}

static int exit_code(pid_t pid)
{
    int status = 0;
    pid_t got;
    do
        got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    assert_int_equal(got, pid);
    if (!WIFEXITED(status))
        fail_msg("epd-engine ended with signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void check_alone(const char *arg, int code, const char *says)
{
    char text[4096] = "";
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    const pid_t pid = run(arg, -1, out[1]);
    (void)close(out[1]);
    assert_true(read(out[0], text, sizeof(text) - 1) > 0);
    (void)close(out[0]);
    assert_int_equal(exit_code(pid), code);
    if (strstr(text, says) == NULL)
        fail_msg("%s", text);
}

static void by_hand_it_refuses(void **state)
{
    (void)state;
    check_alone(NULL, 2, "is started by epd");
    check_alone("0", 2, "is started by epd");
    check_alone("--bad", 2, "is started by epd");
    check_alone("--version", 0, "epd-engine " EPD_VERSION);
    check_alone("--help", 0, "epd-engine");
}

static void ask(struct engine *e, void *msg, size_t bytes, uint16_t type, int *fds, unsigned n_fds)
{
    struct epd_msg_header *h = msg;
    char buf[EPD_MSG_MAX_BYTES];
    size_t len;
    unsigned got = 0;
    *h = (struct epd_msg_header){.type = type, .bytes = (uint32_t)bytes, .seq = ++e->seq};
    assert_int_equal(epd_fd_send(e->sock, msg, bytes, NULL, 0, NULL), EPD_OK);
    assert_int_equal(epd_fd_recv(e->sock, buf, sizeof(buf), &len, fds, n_fds, &got, NULL), EPD_OK);
    assert_int_equal(got, n_fds);
    const struct epd_msg_reply *r = (const void *)buf;
    assert_int_equal(r->status, EPD_OK);
    assert_int_equal(r->h.seq, e->seq);
}

static struct engine start(uint32_t workers)
{
    struct engine e = {.sock = -1};
    int pair[2], fds[3];
    void *page = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    e.sock = pair[0];
    e.pid = run("1", pair[1], -1);
    (void)close(pair[1]);
    assert_int_equal(epd_pidfd_open(e.pid, &e.pidfd, NULL), EPD_OK);
    struct epd_msg_config config = {.abi = EPD_ABI_VERSION,
                                    .device = 1,
                                    .incarnation = 1,
                                    .workers = workers,
                                    .spin_us = UINT32_MAX,
                                    .log_level = EPD_LOG_ERROR};
    ask(&e, &config, sizeof(config), EPD_MSG_CONFIG, fds, 3);
    assert_int_equal(epd_memfd_map(fds[0], EPD_STATUS_PAGE_BYTES, false, &page, NULL), EPD_OK);
    e.page = page;
    for (unsigned i = 0; i < 3; i++)
        epd_close_fd(&fds[i]);
    struct epd_msg_header ping; /* the loop runs */
    ask(&e, &ping, sizeof(ping), EPD_MSG_PING, NULL, 0);
    return e;
}

/* Milliseconds until it has gone. */
static unsigned gone_after_ms(const struct engine *e, uint64_t since)
{
    struct pollfd p = {.fd = e->pidfd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    return (unsigned)((epd_now_ns() - since) / 1000000u);
}

static void done(struct engine *e)
{
    epd_memfd_unmap(e->page, EPD_STATUS_PAGE_BYTES);
    epd_close_fd(&e->pidfd);
    epd_close_fd(&e->sock);
}

static void it_leaves_when_told(void **state)
{
    (void)state;
    struct engine e = start(2);
    struct epd_msg_header stop;
    assert_int_equal(e.page->state, EPD_ENGINE_RUNNING);
    ask(&e, &stop, sizeof(stop), EPD_MSG_STOP, NULL, 0);
    assert_int_equal(exit_code(e.pid), 0);
    assert_int_equal(e.page->state, EPD_ENGINE_STOPPED);
    done(&e);
}

static void it_leaves_when_the_supervisor_is_gone(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 3; workers++) {
        struct engine e = start(workers);
        const uint64_t since = epd_now_ns();
        epd_close_fd(&e.sock);
        const unsigned ms = gone_after_ms(&e, since);
        print_message("%u workers: gone after %u ms\n", workers, ms);
        assert_true(ms < 100 * slow());
        assert_int_equal(exit_code(e.pid), 0);
        assert_int_equal(e.page->state, EPD_ENGINE_DAEMON_LOST);
        done(&e);
    }
}

/* The daemon lives on and starts another engine: the page must not say that it is lost. */
static void nonsense_ends_it_as_a_crash(void **state)
{
    (void)state;
    struct engine e = start(1);
    const uint64_t nonsense[2] = {0x1234, 5};
    assert_int_equal(epd_fd_send(e.sock, nonsense, sizeof(nonsense), NULL, 0, NULL), EPD_OK);
    assert_int_equal(exit_code(e.pid), 3);
    assert_int_equal(e.page->state, EPD_ENGINE_RUNNING);
    done(&e);
}

static void signals_are_the_supervisors(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};
    struct engine e = start(1);
    struct pollfd p = {.fd = e.pidfd, .events = POLLIN};
    for (unsigned i = 0; i < EPD_ARRAY_LEN(signals); i++)
        assert_int_equal(kill(e.pid, signals[i]), 0);
    assert_int_equal(poll(&p, 1, 50), 0);
    struct epd_msg_header stop;
    ask(&e, &stop, sizeof(stop), EPD_MSG_STOP, NULL, 0);
    assert_int_equal(exit_code(e.pid), 0);
    done(&e);
}

static void idle_it_sleeps(void **state)
{
    (void)state;
    struct engine e = start(3);
    const uint64_t begin = epd_now_ns();
    while (__atomic_load_n(&e.page->sleeping, __ATOMIC_ACQUIRE) == 0 &&
           epd_now_ns() - begin < 10000000000ull)
        (void)usleep(1000);
    const uint64_t wakeups = e.page->wakeups;
    (void)usleep(500000);
    assert_int_equal(e.page->sleeping, 1);
    assert_int_equal(e.page->wakeups, wakeups); /* without a deadline it sleeps for ever */
    struct epd_msg_header stop;
    ask(&e, &stop, sizeof(stop), EPD_MSG_STOP, NULL, 0);
    assert_int_equal(exit_code(e.pid), 0);
    done(&e);
}

int main(void)
{
    const char *dir = getenv("EPD_BIN_DIR");
    (void)snprintf(g_path, sizeof(g_path), "%s/epd-engine", dir != NULL ? dir : "build/bin");
    if (access(g_path, X_OK) != 0) {
        (void)printf("skipped: no %s\n", g_path);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand_it_refuses),
        cmocka_unit_test(it_leaves_when_told),
        cmocka_unit_test(it_leaves_when_the_supervisor_is_gone),
        cmocka_unit_test(nonsense_ends_it_as_a_crash),
        cmocka_unit_test(signals_are_the_supervisors),
        cmocka_unit_test(idle_it_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
