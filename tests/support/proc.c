#include "tests/support/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/check.h"

#define MAX_CHILDREN 256

static pid_t g_children[MAX_CHILDREN];

double slow_factor(void)
{
    const char *text = getenv("EPD_TEST_SLOW");
    double f = text ? atof(text) : 1.0;
    return f < 1.0 ? 1.0 : f;
}

int slow_ms(int ms)
{
    return (int)(ms * slow_factor());
}

uint64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail */
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

double ms_since(uint64_t start_ns)
{
    return (double)(now_ns() - start_ns) / 1e6;
}

void sleep_ms(int ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

static void remember(pid_t pid)
{
    for (int i = 0; i < MAX_CHILDREN; i++)
        if (g_children[i] == 0) {
            g_children[i] = pid;
            return;
        }
    check_fail("more than %d children", MAX_CHILDREN);
}

static void forget(pid_t pid)
{
    for (int i = 0; i < MAX_CHILDREN; i++)
        if (g_children[i] == pid)
            g_children[i] = 0;
}

/* In the child: die with the test, know no children, and die of a fault (the test framework's
 * handler would run the rest of the tests here). */
static void child_init(pid_t parent)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        (void)signal(faults[i], SIG_DFL);
    memset(g_children, 0, sizeof(g_children));
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* without it a stray child only lives longer */
    if (getppid() != parent)
        _exit(99);
}

pid_t proc_fork(int (*body)(int fd, void *arg), void *arg, int *fd_out)
{
    int pair[2];
    pid_t parent = getpid();
    (void)fflush(NULL);
    check_true(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair: %m");
    pid_t pid = fork();
    check_true(pid >= 0, "fork: %m");
    if (pid == 0) {
        child_init(parent);
        (void)close(pair[0]);
        _exit(body(pair[1], arg));
    }
    (void)close(pair[1]);
    remember(pid);
    *fd_out = pair[0];
    return pid;
}

pid_t proc_exec(char *const argv[], const char *log)
{
    pid_t parent = getpid();
    (void)fflush(NULL);
    pid_t pid = fork();
    check_true(pid >= 0, "fork: %m");
    if (pid == 0) {
        child_init(parent);
        int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
        if (fd >= 0) {
            (void)dup2(fd, STDOUT_FILENO);
            (void)dup2(fd, STDERR_FILENO);
            (void)close(fd);
        }
        (void)execv(argv[0], argv);
        (void)fprintf(stderr, "exec %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    remember(pid);
    return pid;
}

static int decode(pid_t pid, int status)
{
    forget(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : PROC_SIGNALLED + WTERMSIG(status);
}

int proc_wait(pid_t pid, int ms)
{
    uint64_t start = now_ns();
    for (;;) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return decode(pid, status);
        check_true(got == 0 || errno == EINTR, "waitpid(%d): %m", (int)pid);
        if (ms_since(start) >= ms)
            return PROC_RUNNING;
        sleep_ms(1);
    }
}

void proc_kill(pid_t pid)
{
    int status;
    if (pid <= 0)
        return;
    for (int i = 0; i < MAX_CHILDREN; i++) {
        if (g_children[i] != pid)
            continue;
        (void)kill(pid, SIGKILL); /* ours and not reaped: the pid is not reused */
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        forget(pid);
        return;
    }
}

void proc_kill_all(void)
{
    for (int i = 0; i < MAX_CHILDREN; i++)
        proc_kill(g_children[i]);
}

bool proc_send(int fd, const void *msg, size_t n)
{
    ssize_t sent;
    do {
        sent = send(fd, msg, n, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)n;
}

bool proc_recv(int fd, void *msg, size_t n, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t start = now_ns();
    for (;;) {
        int left = ms < 0 ? -1 : ms - (int)ms_since(start);
        int rc = poll(&p, 1, left < 0 && ms >= 0 ? 0 : left);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0)
            return false;
        return recv(fd, msg, n, 0) == (ssize_t)n;
    }
}

bool wait_until(bool (*cond)(void *arg), void *arg, int ms)
{
    uint64_t start = now_ns();
    for (;;) {
        if (cond(arg))
            return true;
        if (ms_since(start) >= ms)
            return false;
        sleep_ms(2);
    }
}
