/* test-timeout: 120 */
/* Clients that die or stop, at any moment: peers are told, the seat is free, the next process takes
 * it, the group goes on, other groups notice nothing. */
#include "tests/support/suite.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"
#include "tests/support/rng.h"

SUITE_DAEMON(.devices = 2, .workers = 1)

/* DESIGN: 50 ms. The bound of the test leaves room for a loaded machine. */
#define LOST_MS 500

static void allow_loss(void)
{
    daemon_allow(&g_daemon, "lost");
    daemon_allow(&g_daemon, "died");
    daemon_allow(&g_daemon, "LOST");
}

static double latency(const struct agent_reply *r, uint64_t since_ns)
{
    return r->ns > since_ns ? (double)(r->ns - since_ns) / 1e6 : 0.0;
}

static void is_lost(const struct agent_reply *r, int rank)
{
    check_int(r->status, EPD_OK, "wait");
    check_true(r->result.status == EPD_ERANKLOST, "peer got %s (%s), expected ERANKLOST",
               epd_status_string(r->result.status), r->text);
    check_int(r->result.rank, rank, "lost rank");
}

/* Peers wait for a dispatch of rank 2, which dies between two ops. */
static void killed_between_ops(void **state)
{
    (void)state;
    struct cluster c;
    double worst = 0;
    allow_loss();
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 3, .devices = 2});
    for (uint32_t round = 0; round < 3; round++) {
        cluster_run(&c, RUN_PLAIN, round * 10, 2);
        for (uint32_t r = 0; r < 2; r++) {
            (void)agent_dispatch(&c.a[r], 0, round * 10 + 2);
            agent_post_wait(&c.a[r], 0, 10000);
        }
        sleep_ms(20); /* both sleep in their wait */
        uint64_t at = agent_kill(&c.a[2]);
        for (uint32_t r = 0; r < 2; r++) {
            struct agent_reply got = agent_collect(&c.a[r], 15000);
            is_lost(&got, 2);
            worst = latency(&got, at) > worst ? latency(&got, at) : worst;
        }
        cluster_replace(&c, 2);
        cluster_rearm(&c, 2);
        cluster_run(&c, RUN_PLAIN, round * 10 + 3, 3);
    }
    measured("peers know of a killed client after at most %.1f ms (design: 50)", worst);
    check_true(worst < slow_ms(LOST_MS), "peers were told only after %.0f ms", worst);
    cluster_close(&c);
}

/* Before anybody has anything in flight: the next submission is told. */
static void killed_while_idle(void **state)
{
    (void)state;
    struct cluster c;
    allow_loss();
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 3);
    (void)agent_kill(&c.a[1]);
    sleep_ms(slow_ms(200)); /* the change is over */
    (void)agent_dispatch(&c.a[0], 0, 3);
    struct agent_reply got = agent_wait(&c.a[0], 0, 5000);
    is_lost(&got, 1);
    agent_rearm(&c.a[0], 0);
    cluster_replace(&c, 1);
    cluster_run(&c, RUN_PIPELINED, 4, 6);
    cluster_close(&c);
}

/* Rows of 8 KiB, many of them: the kill meets the copy. Another group must not feel it. */
static void killed_inside_ops(void **state)
{
    (void)state;
    struct cluster c, other;
    double worst = 0;
    struct rng rng = rng_make(5, 0, 0);
    allow_loss();
    cluster_open(&other, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_post_run(&other, RUN_PIPELINED, 0, 300);
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 3,
                                        .devices = 2,
                                        .tokens = 64,
                                        .hidden = 4096,
                                        .sets = 1,
                                        .b_pattern = B_FULL});
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t r = 0; r < 3; r++)
            agent_post_until_lost(&c.a[r], 0, round * 1000, false, 0);
        sleep_ms(20 + (int)rng_below(&rng, 60));
        uint64_t at = agent_kill(&c.a[1]);
        for (uint32_t r = 0; r < 3; r += 2) {
            struct agent_reply got = agent_collect(&c.a[r], 30000);
            is_lost(&got, 1);
            worst = latency(&got, at) > worst ? latency(&got, at) : worst;
        }
        cluster_replace(&c, 1);
        cluster_rearm(&c, 1);
    }
    cluster_run(&c, RUN_PLAIN, 100000, 2);
    measured("peers know of a client killed inside an op after at most %.1f ms", worst);
    check_true(worst < slow_ms(LOST_MS), "peers were told only after %.0f ms", worst);
    cluster_collect_run(&other);
    cluster_close(&other);
    cluster_close(&c);
}

/* ---- a child that holds everything ------------------------------------------------------ */

static AGENT_COMMAND(cmd_leave_sleeper)
{
    (void)cmd;
    st->sleeper = fork(); /* a copy of every descriptor and mapping, close-on-exec or not */
    if (st->sleeper == 0) {
        (void)prctl(PR_SET_PDEATHSIG, 0);
        for (;;)
            (void)pause();
    }
    reply->v[0] = (uint64_t)st->sleeper;
}

static void killed_with_a_sleeping_child(void **state)
{
    (void)state;
    struct cluster c;
    allow_loss();
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    struct agent_reply r = agent_call(&c.a[1], &(struct agent_cmd){.fn = cmd_leave_sleeper});
    const pid_t sleeper = (pid_t)r.v[0];
    (void)agent_dispatch(&c.a[0], 0, 2);
    agent_post_wait(&c.a[0], 0, 10000);
    sleep_ms(10);
    uint64_t at = agent_kill(&c.a[1]);
    struct agent_reply got = agent_collect(&c.a[0], 15000);
    const bool held = proc_alive(sleeper);
    const double ms = latency(&got, at);
    cluster_replace(&c, 1);
    cluster_rearm(&c, 1);
    cluster_run(&c, RUN_PLAIN, 3, 3);
    (void)kill(sleeper, SIGKILL); /* ours, not reaped by anybody else before */
    check_true(held, "the sleeping child died too early: the test shows nothing");
    is_lost(&got, 1);
    measured("with its descriptors held by a sleeping child: told after %.1f ms", ms);
    check_true(ms < slow_ms(LOST_MS), "told only after %.0f ms", ms);
    cluster_close(&c);
}

/* ---- stopped ---------------------------------------------------------------------------- */

static void stopped_and_continued(void **state)
{
    (void)state;
    struct cluster c;
    daemon_allow(&g_daemon, "late");
    daemon_allow(&g_daemon, "LATE");
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 3, .devices = 2, .timeout_ms = 300});
    cluster_run(&c, RUN_PLAIN, 0, 3);
    agent_signal(&c.a[1], SIGSTOP);
    uint64_t start = now_ns(), epoch = 0;
    for (uint32_t r = 0; r < 3; r += 2)
        epoch = agent_dispatch(&c.a[r], 0, 3).v[1];
    for (uint32_t r = 0; r < 3; r += 2) {
        struct epd_result got = agent_wait_status(&c.a[r], 0, EPD_ERANKLATE);
        check_int(got.rank, 1, "late rank");
        check_int(got.epoch, epoch, "epoch");
    }
    measured("a stopped client is named after %.0f ms (timeout %d)", ms_since(start), slow_ms(300));
    agent_signal(&c.a[1], SIGCONT);
    (void)agent_dispatch(&c.a[1], 0, 3);
    struct epd_result got = agent_wait_status(&c.a[1], 0, EPD_ERANKLATE);
    check_int(got.rank, 1, "late rank");
    cluster_run(&c, RUN_PLAIN, 4, 4);
    cluster_close(&c);
}

/* ---- leases ----------------------------------------------------------------------------- */

static void takeover(void **state)
{
    (void)state;
    struct cluster c;
    struct agent thief;
    allow_loss();
    daemon_allow(&g_daemon, "takeover");
    daemon_allow(&g_daemon, "taken over");
    daemon_allow(&g_daemon, "replaced");
    daemon_allow(&g_daemon, "JOINED");
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    agent_start(&thief, &g_daemon);
    agent_open(&thief);
    struct seat_config s = c.seat;
    s.group = c.group;
    s.rank = 1;
    check_int(agent_try_seat(&thief, 0, &s).status, EPD_EBUSY, "lease without takeover");
    (void)agent_dispatch(&c.a[0], 0, 2);
    s.takeover = 1;
    agent_seat(&thief, 0, &s);
    struct agent_reply got = agent_wait(&c.a[0], 0, 5000);
    check_int(got.status, EPD_OK, "wait of the peer");
    check_true(epd_status_scope_of(got.result.status) == EPD_SCOPE_GROUP,
               "peer of a seat taken over got %s", epd_status_string(got.result.status));
    /* The former holder's seat is dead: whatever it submits fails or is refused. */
    struct agent_reply old =
        agent_call(&c.a[1], &(struct agent_cmd){.fn = cmd_dispatch, .step = 9});
    if (old.status == EPD_OK) {
        old = agent_wait(&c.a[1], 0, 2000);
        check_true(old.status != EPD_OK || old.result.status != EPD_OK,
                   "the former holder's op succeeded");
    }
    (void)agent_kill(&c.a[1]);
    c.a[1] = thief;
    sleep_ms(slow_ms(100)); /* its death concerns nobody any more */
    agent_rearm(&c.a[0], 0);
    cluster_run(&c, RUN_PLAIN, 3, 3);
    cluster_close(&c);
}

/* Session closed in order: the same as a death, for the peers. */
static void left_in_order(void **state)
{
    (void)state;
    struct cluster c;
    allow_loss();
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    (void)agent_dispatch(&c.a[0], 0, 2);
    agent_end(&c.a[1]);
    struct agent_reply got = agent_wait(&c.a[0], 0, 5000);
    is_lost(&got, 1);
    cluster_replace(&c, 1);
    cluster_rearm(&c, 1);
    cluster_run(&c, RUN_PLAIN, 3, 3);
    cluster_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(killed_between_ops),    SUITE_TEST(killed_while_idle),
        SUITE_TEST(killed_inside_ops),     SUITE_TEST(killed_with_a_sleeping_child),
        SUITE_TEST(stopped_and_continued), SUITE_TEST(takeover),
        SUITE_TEST(left_in_order),
    };
    return cmocka_run_group_tests_name("client", tests, suite_setup, suite_teardown);
}
