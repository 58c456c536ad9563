/* test-timeout: 120 */
/* The supervisor: its death, its restart, its drain, its socket, its idle life. */
#include "tests/support/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/agent_internal.h"

#define LOST_MS 1000 /* DESIGN: 100 ms */

/* ---- death ------------------------------------------------------------------------------ */

static void supervisor_killed(void **state)
{
    (void)state;
    struct daemon d;
    struct cluster c;
    pid_t engines[4];
    double told = 0;
    daemon_start(&d, &(struct daemon_config){.devices = 2});
    daemon_allow(&d, "supervisor");
    daemon_allow(&d, "daemon");
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 3, .devices = 2});
    check_int(daemon_engines(&d, engines, 4), 2, "engines");
    cluster_run(&c, RUN_PLAIN, 0, 2);
    /* Two wait for the third; the third works on nothing and only looks. */
    for (uint32_t r = 0; r < 2; r++)
        agent_post_until_lost(&c.a[r], 0, 2, true, 0);
    sleep_ms(30);
    const uint64_t at = now_ns();
    daemon_kill(&d);
    for (uint32_t r = 0; r < 2; r++) {
        struct agent_reply got = agent_collect(&c.a[r], 30000);
        check_true(got.status == EPD_EDAEMONLOST ||
                       (got.status == EPD_OK && got.result.status == EPD_EDAEMONLOST),
                   "client got %s, completion %s", epd_status_string(got.status),
                   epd_status_string(got.result.status));
        const double ms = (double)(got.ns - at) / 1e6;
        told = ms > told ? ms : told;
    }
    uint64_t start = now_ns();
    while ((proc_alive(engines[0]) || proc_alive(engines[1])) && ms_since(start) < slow_ms(5000))
        sleep_ms(1);
    const double gone = ms_since(at);
    check_true(!proc_alive(engines[0]) && !proc_alive(engines[1]),
               "engines outlive the supervisor");
    measured("supervisor killed: clients told after at most %.0f ms, engines gone after %.0f ms",
             told, gone);
    check_true(told < slow_ms(LOST_MS), "clients were told only after %.0f ms", told);
    check_true(gone < slow_ms(LOST_MS + 1000), "engines stayed for %.0f ms", gone);
    /* A new one starts at once over the old one's socket; clients attach again. */
    start = now_ns();
    daemon_restart(&d, true);
    measured("a new supervisor serves after %.0f ms", ms_since(start));
    for (uint32_t r = 0; r < 3; r++)
        (void)agent_kill(&c.a[r]);
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 3, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 3);
    cluster_close(&c);
    daemon_stop(&d);
}

/* A process that lives through it opens a new session beside the lost one. */
static void client_survives_restart(void **state)
{
    (void)state;
    struct daemon d;
    struct cluster c;
    daemon_start(&d, &(struct daemon_config){.devices = 1});
    daemon_allow(&d, "supervisor");
    daemon_allow(&d, "daemon");
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 1});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    daemon_kill(&d);
    daemon_restart(&d, true); /* while the old session is still open there */
    (void)agent_call(&c.a[0], &(struct agent_cmd){.fn = cmd_close, .a = {1}});
    agent_open(&c.a[0]);
    c.group = agent_create(&c.a[0], &c.spec).v[0];
    c.seat.group = c.group;
    agent_seat(&c.a[0], 0, &c.seat);
    cluster_run(&c, RUN_PLAIN, 0, 3);
    cluster_close(&c);
    daemon_stop(&d);
}

/* SIGTERM with sessions at work: drained, exit 0, clients told. */
static void drain(void **state)
{
    (void)state;
    struct daemon d;
    struct cluster c;
    char extra[64];
    (void)snprintf(extra, sizeof(extra), "drain_ms = %d\n", slow_ms(300));
    daemon_start(&d, &(struct daemon_config){.devices = 2, .extra = extra});
    daemon_allow(&d, "drain");
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 2, .devices = 2});
    for (uint32_t r = 0; r < 2; r++)
        agent_post_until_lost(&c.a[r], 0, 0, true, 0);
    sleep_ms(50);
    uint64_t start = now_ns();
    daemon_stop(&d);
    measured("SIGTERM under load: exit 0 after %.0f ms (drain_ms %d)", ms_since(start),
             slow_ms(300));
    for (uint32_t r = 0; r < 2; r++) {
        struct agent_reply got = agent_collect(&c.a[r], 30000);
        const enum epd_status status = got.status != EPD_OK ? got.status : got.result.status;
        check_true(epd_status_scope_of(status) >= EPD_SCOPE_GROUP, "client got %s",
                   epd_status_string(status));
        check_true(got.v[0] > 0, "rank %u had no good op before", r);
        (void)agent_kill(&c.a[r]);
    }
    check_true(access(d.socket, F_OK) != 0, "the socket is still there");
}

/* ---- the socket ------------------------------------------------------------------------- */

static void second_daemon(void **state)
{
    (void)state;
    struct daemon d, second;
    struct cluster c;
    char pid[32];
    struct stat before, after;
    daemon_start(&d, NULL);
    second = d;
    (void)snprintf(second.log, sizeof(second.log), "%s/log2", d.dir);
    (void)snprintf(pid, sizeof(pid), "%d", (int)d.pid);
    check_true(stat(d.socket, &before) == 0, "stat %s: %m", d.socket);
    uint64_t start = now_ns();
    daemon_restart(&second, false);
    const int code = proc_wait(second.pid, slow_ms(8000));
    check_true(code != PROC_RUNNING && code != 0 && code < PROC_SIGNALLED,
               "the second daemon: exit code %d", code);
    check_true(daemon_log_has(&second, pid), "it does not name the holder's pid %s", pid);
    measured("a second daemon refuses after %.0f ms with exit code %d", ms_since(start), code);
    check_true(stat(d.socket, &after) == 0 && before.st_ino == after.st_ino, "socket was touched");
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 2}); /* the first one is unharmed */
    cluster_run(&c, RUN_PLAIN, 0, 2);
    cluster_close(&c);
    daemon_stop(&d);
}

static void regular_file(void **state)
{
    (void)state;
    struct daemon d;
    char text[16] = "";
    daemon_start(&d, NULL);
    check_true(kill(d.pid, SIGTERM) == 0, "kill: %m");
    check_int(proc_wait(d.pid, slow_ms(10000)), 0, "exit code");
    int fd = open(d.socket, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    check_true(fd >= 0, "the socket was not removed at exit: %m");
    check_true(write(fd, "precious", 8) == 8, "write: %m");
    (void)close(fd);
    daemon_restart(&d, false);
    const int code = proc_wait(d.pid, slow_ms(8000));
    check_true(code != PROC_RUNNING && code != 0 && code < PROC_SIGNALLED, "exit code %d", code);
    d.pid = 0;
    check_true(daemon_log_has(&d, d.socket), "the path is not named");
    fd = open(d.socket, O_RDONLY | O_CLOEXEC);
    check_true(fd >= 0 && read(fd, text, 8) == 8 && strcmp(text, "precious") == 0,
               "the file was not left alone");
    (void)close(fd);
    daemon_allow(&d, d.socket);
    daemon_clean(&d);
}

static void modes_whatever_the_umask(void **state)
{
    (void)state;
    static const mode_t masks[] = {0, 022, 077};
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        struct daemon d;
        struct stat st;
        char path[128];
        const mode_t old = umask(masks[i]);
        daemon_start(&d, &(struct daemon_config){.extra = "socket_mode = 0660\n"});
        (void)umask(old);
        check_true(stat(d.socket, &st) == 0, "stat: %m");
        check_int(st.st_mode & 07777, 0660, "mode of the socket");
        (void)snprintf(path, sizeof(path), "%s.fd", d.socket);
        check_true(stat(path, &st) == 0, "stat: %m");
        check_int(st.st_mode & 07777, 0660, "mode of the fd socket");
        daemon_stop(&d);
    }
}

/* ---- idle ------------------------------------------------------------------------------- */

static void idle(void **state)
{
    (void)state;
    struct daemon d;
    struct cluster c;
    pid_t pid[3];
    uint64_t before[3];
    daemon_start(&d,
                 &(struct daemon_config){.devices = 2, .workers = 2, .extra = "idle_ms = 300\n"});
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 3);
    pid[0] = d.pid;
    check_int(daemon_engines(&d, pid + 1, 2), 2, "engines");
    sleep_ms(slow_ms(500));
    for (int i = 0; i < 3; i++)
        before[i] = procfs_usage(pid[i]).ticks;
    sleep_ms(2000); /* no RPC for longer than idle_ms */
    uint64_t ticks[3], sum = 0;
    for (int i = 0; i < 3; i++)
        sum += ticks[i] = procfs_usage(pid[i]).ticks - before[i];
    measured("2 s idle: daemon %d ticks, engines %d and %d (of %ld a second)", (int)ticks[0],
             (int)ticks[1], (int)ticks[2], sysconf(_SC_CLK_TCK));
    check_true(sum <= 3 * (uint64_t)slow_factor(), "%d ticks in 2 s of idleness", (int)sum);
    /* The control connection may be gone; session, lease and the data path are not. */
    cluster_run(&c, RUN_PLAIN, 3, 3);
    struct seat_config s = c.seat;
    s.group = c.group;
    struct agent_reply r = agent_try_seat(&c.a[1], 1, &s);
    check_true(r.status == EPD_EBUSY, "a call after the idle time: %s: %s",
               epd_status_string(r.status), r.err.message);
    cluster_close(&c);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LONELY_TEST(supervisor_killed),
        LONELY_TEST(client_survives_restart),
        LONELY_TEST(drain),
        LONELY_TEST(second_daemon),
        LONELY_TEST(regular_file),
        LONELY_TEST(modes_whatever_the_umask),
        LONELY_TEST(idle),
    };
    return cmocka_run_group_tests_name("daemon", tests, NULL, NULL);
}
