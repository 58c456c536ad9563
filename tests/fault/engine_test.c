/* test-timeout: 120 */
/* Engines that die or stop: the daemon and the sessions stay, groups with a seat on the device get
 * `engine restarted` and go on after a re-arm, groups elsewhere lose no op. */
#include "tests/support/suite.h"

#include <signal.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"

/* No back-off: what is measured is the restart itself. */
SUITE_DAEMON(.devices = 2, .workers = 1, .extra = "restart_backoff_ms = 1\nrestart_max = 1000\n")

#define RESTART_MS 3000 /* DESIGN: pause of at most 1 s */

static pid_t engine_of(const struct agent *observer, uint32_t device)
{
    struct agent_reply r = agent_status(observer);
    check_true(r.device[device].pid > 0, "device %u has no engine", device);
    return (pid_t)r.device[device].pid;
}

/* epd_rearm, again while the engine is not back. Returns ms. */
static double rearm_all(struct cluster *c)
{
    uint64_t start = now_ns();
    for (uint32_t r = 0; r < c->ranks; r++) {
        struct agent_reply got;
        do {
            struct agent_cmd cmd = {.fn = cmd_rearm};
            got = agent_call(&c->a[r], &cmd);
            if (got.status == EPD_EDEVICE)
                sleep_ms(10);
        } while (got.status == EPD_EDEVICE && ms_since(start) < slow_ms(RESTART_MS));
        check_true(got.status == EPD_OK, "rearm of rank %u: %s: %s", r,
                   epd_status_string(got.status), got.err.message);
    }
    return ms_since(start);
}

static void is_restarted(const struct agent_reply *r)
{
    check_true(r->status == EPD_OK, "wait: %s", epd_status_string(r->status));
    check_true(r->result.status == EPD_EENGINERESTARTED, "got %s (%s)",
               epd_status_string(r->result.status), r->text);
}

static void allow_restart(void)
{
    daemon_allow(&g_daemon, "engine");
    daemon_allow(&g_daemon, "device");
    daemon_allow(&g_daemon, "restart");
}

static void killed(void **state)
{
    (void)state;
    struct cluster c, elsewhere;
    struct agent observer;
    double told = 0, back = 0;
    allow_restart();
    agent_start(&observer, &g_daemon);
    const uint32_t before = agent_status(&observer).device[0].restarts;
    cluster_open(&elsewhere, &g_daemon,
                 &(struct cluster_spec){.ranks = 2, .devices = 1, .first_device = 1});
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 3, .devices = 2});
    cluster_post_run(&elsewhere, RUN_PIPELINED, 0, 400);
    for (uint32_t round = 0; round < 3; round++) {
        const pid_t engine = engine_of(&observer, 0);
        for (uint32_t r = 0; r < 3; r++)
            agent_post_until_lost(&c.a[r], 0, round * 1000, true, 0);
        sleep_ms(30 + 10 * (int)round);
        const uint64_t at = now_ns();
        check_true(kill(engine, SIGKILL) == 0, "kill engine: %m");
        for (uint32_t r = 0; r < 3; r++) {
            struct agent_reply got = agent_collect(&c.a[r], 30000);
            is_restarted(&got);
            const double ms = (double)(got.ns - at) / 1e6;
            told = ms > told ? ms : told;
        }
        const double ms = rearm_all(&c);
        back = ms > back ? ms : back;
        cluster_run(&c, RUN_PLAIN, round * 1000 + 500, 3);
    }
    measured("engine killed: clients told after at most %.0f ms, re-armed %.0f ms later", told,
             back);
    check_true(told < slow_ms(RESTART_MS), "clients were told only after %.0f ms", told);
    check_int(agent_status(&observer).device[0].restarts, before + 3, "restarts of device 0");
    check_int(agent_status(&observer).device[1].restarts, 0, "restarts of device 1");
    cluster_collect_run(&elsewhere); /* no op lost, bit-equal */
    cluster_close(&elsewhere);
    cluster_close(&c);
    agent_end(&observer);
}

/* Nothing in flight: the next submission tells; buffers keep what was in them. */
static void killed_while_idle(void **state)
{
    (void)state;
    struct cluster c;
    struct agent observer;
    allow_restart();
    agent_start(&observer, &g_daemon);
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    check_true(kill(engine_of(&observer, 1), SIGKILL) == 0, "kill engine: %m");
    (void)agent_dispatch(&c.a[0], 0, 2);
    struct agent_reply got = agent_wait(&c.a[0], 0, 10000);
    is_restarted(&got);
    agent_quiet(&c.a[1], 0); /* rank 1's memory survived its engine */
    (void)rearm_all(&c);
    cluster_run(&c, RUN_PIPELINED, 3, 6);
    cluster_close(&c);
    agent_end(&observer);
}

/* Both at once, then a client: the group still comes back. */
static void both_killed(void **state)
{
    (void)state;
    struct cluster c;
    struct agent observer;
    allow_restart();
    daemon_allow(&g_daemon, "lost");
    agent_start(&observer, &g_daemon);
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    const pid_t e0 = engine_of(&observer, 0), e1 = engine_of(&observer, 1);
    for (uint32_t r = 0; r < 2; r++)
        agent_post_until_lost(&c.a[r], 0, 2, true, 0);
    sleep_ms(20);
    check_true(kill(e0, SIGKILL) == 0 && kill(e1, SIGKILL) == 0, "kill engines: %m");
    for (uint32_t r = 0; r < 2; r++) {
        struct agent_reply got = agent_collect(&c.a[r], 30000);
        is_restarted(&got);
    }
    cluster_replace(&c, 1);
    struct agent_reply got;
    uint64_t start = now_ns();
    do {
        got = agent_call(&c.a[0], &(struct agent_cmd){.fn = cmd_rearm});
        sleep_ms(5);
    } while (got.status == EPD_EDEVICE && ms_since(start) < slow_ms(RESTART_MS));
    check_int(got.status, EPD_OK, "rearm");
    cluster_run(&c, RUN_PLAIN, 10, 3);
    cluster_close(&c);
    agent_end(&observer);
}

/* An engine that stops inside a large copy cannot be fenced: it is killed before anybody is told,
 * and writes nothing afterwards. */
static void stopped_inside_a_copy(void **state)
{
    (void)state;
    struct cluster c;
    struct agent observer;
    double worst = 0;
    allow_restart();
    daemon_allow(&g_daemon, "late");
    daemon_allow(&g_daemon, "LATE");
    daemon_allow(&g_daemon, "revoke");
    agent_start(&observer, &g_daemon);
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 2,
                                        .devices = 2,
                                        .tokens = 128,
                                        .hidden = 4096,
                                        .sets = 1,
                                        .timeout_ms = 400,
                                        .b_pattern = B_FULL});
    for (uint32_t round = 0; round < 2; round++) {
        const pid_t engine = engine_of(&observer, 0);
        for (uint32_t r = 0; r < 2; r++)
            agent_post_until_lost(&c.a[r], 0, round * 1000, false, 0);
        sleep_ms(60 + 7 * (int)round);
        const uint64_t at = now_ns();
        check_true(kill(engine, SIGSTOP) == 0, "stop engine: %m");
        for (uint32_t r = 0; r < 2; r++) {
            struct agent_reply got = agent_collect(&c.a[r], 30000); /* guards checked there */
            check_int(got.status, EPD_OK, "wait");
            check_true(got.result.status == EPD_EENGINERESTARTED ||
                           got.result.status == EPD_ERANKLATE,
                       "got %s", epd_status_string(got.result.status));
            const double ms = (double)(got.ns - at) / 1e6;
            worst = ms > worst ? ms : worst;
        }
        uint64_t start = now_ns();
        while (proc_alive(engine) && ms_since(start) < slow_ms(2000))
            sleep_ms(5);
        check_true(!proc_alive(engine), "the stopped engine was not killed");
        for (uint32_t r = 0; r < 2; r++) /* nothing was written after the completions */
            agent_quiet(&c.a[r], 0);
        (void)rearm_all(&c);
    }
    cluster_run(&c, RUN_PLAIN, 5000, 2);
    measured("engine stopped inside a copy: clients told after at most %.0f ms (timeout %d)", worst,
             slow_ms(400));
    check_true(worst < slow_ms(400 + RESTART_MS), "told only after %.0f ms", worst);
    cluster_close(&c);
    agent_end(&observer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(killed),
        SUITE_TEST(killed_while_idle),
        SUITE_TEST(both_killed),
        SUITE_TEST(stopped_inside_a_copy),
    };
    return cmocka_run_group_tests_name("engine", tests, suite_setup, suite_teardown);
}
