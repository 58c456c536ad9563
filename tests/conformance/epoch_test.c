/* test-timeout: 90 */
/* Epochs that fail: ranks that disagree, ranks that are late. One decision of the group, told to
 * every seat, naming the culprits; the group goes on with the next epoch; other groups notice
 * nothing. */
#include "tests/support/suite.h"

#include "proto/ring.h"
#include "tests/support/agent_internal.h"

SUITE_DAEMON(.devices = 3, .workers = 1)

#define LATE_MS 300u

static void names(const struct epd_result *r, int a, int b)
{
    check_true((r->rank == a && r->other_rank == b) || (r->rank == b && r->other_rank == a),
               "mismatch names ranks %d and %d, expected %d and %d", r->rank, r->other_rank, a, b);
}

/* ---- disagreement ----------------------------------------------------------------------- */

static void tag_mismatch(void **state)
{
    (void)state;
    struct cluster c;
    daemon_allow(&g_daemon, "disagree");
    daemon_allow(&g_daemon, "MISMATCH");
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_step(&c, 0);
    (void)agent_dispatch(&c.a[0], 0, 1);
    (void)agent_dispatch_twisted(&c.a[1], 0, 1, &(struct seat_twist){.tag_xor = 0x100});
    for (uint32_t r = 0; r < 2; r++) {
        struct epd_result got = agent_wait_status(&c.a[r], 0, EPD_EMISMATCH);
        names(&got, 0, 1);
        check_int(got.epoch, 1, "epoch");
        check_int(got.epoch_consumed, 1, "epoch_consumed");
    }
    cluster_run(&c, RUN_PLAIN, 2, 4);
    cluster_close(&c);
}

/* Of three ranks one disagrees: everybody is told, the odd one is among the two named. */
static void tag_mismatch_of_three(void **state)
{
    (void)state;
    struct cluster c;
    daemon_allow(&g_daemon, "disagree");
    daemon_allow(&g_daemon, "MISMATCH");
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 3, .devices = 3});
    for (uint32_t r = 0; r < 3; r++)
        (void)agent_dispatch_twisted(&c.a[r], 0, 0, &(struct seat_twist){.tag_xor = r == 2});
    for (uint32_t r = 0; r < 3; r++) {
        struct epd_result got = agent_wait_status(&c.a[r], 0, EPD_EMISMATCH);
        check_true(got.rank != got.other_rank && (got.rank == 2 || got.other_rank == 2),
                   "mismatch names ranks %d and %d, rank 2 is the odd one", got.rank,
                   got.other_rank);
    }
    cluster_run(&c, RUN_PLAIN, 1, 3);
    cluster_close(&c);
}

static void combine_tag_mismatch(void **state)
{
    (void)state;
    struct cluster c;
    daemon_allow(&g_daemon, "disagree");
    daemon_allow(&g_daemon, "MISMATCH");
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 2, .devices = 2, .b_pattern = B_FULL});
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_dispatch(&c.a[r], 0, 0);
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_combine_twisted(&c.a[r], 0, 0, &(struct seat_twist){.tag_xor = r});
    for (uint32_t r = 0; r < 2; r++) {
        struct epd_result got = agent_wait_status(&c.a[r], 0, EPD_EMISMATCH);
        names(&got, 0, 1);
    }
    cluster_run(&c, RUN_PLAIN, 1, 3);
    cluster_close(&c);
}

/* Rank 0 combines epoch 0; rank 1 skips that and dispatches epoch 1. */
static void sequence_mismatch(void **state)
{
    (void)state;
    struct cluster c;
    uint64_t start, next[2];
    daemon_allow(&g_daemon, "disagree");
    daemon_allow(&g_daemon, "MISMATCH");
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 2, .devices = 2, .b_pattern = B_FULL});
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_dispatch(&c.a[r], 0, 0);
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    start = now_ns();
    (void)agent_combine(&c.a[0], 0, 0);
    (void)agent_dispatch(&c.a[1], 0, 1);
    struct epd_result got = agent_wait_status(&c.a[0], 0, EPD_EMISMATCH);
    measured("sequence mismatch told after %.1f ms", ms_since(start));
    check_true(ms_since(start) < slow_ms(5000), "told only after %.0f ms", ms_since(start));
    names(&got, 0, 1);
    check_int(got.epoch, 0, "epoch of the failed combine");
    /* Rank 1's dispatch of epoch 1 failed too, or waits for rank 0's: the same for both. */
    (void)agent_dispatch(&c.a[0], 0, 1);
    struct agent_reply a = agent_wait(&c.a[0], 0, 10000), b = agent_wait(&c.a[1], 0, 10000);
    check_int(a.status, EPD_OK, "wait of rank 0");
    check_int(b.status, EPD_OK, "wait of rank 1");
    check_int(a.result.status, b.result.status, "status of epoch 1 on the two ranks");
    check_int(a.result.epoch, b.result.epoch, "epoch");
    for (uint32_t r = 0; r < 2; r++) {
        (void)agent_call(&c.a[r], &(struct agent_cmd){.fn = cmd_forgive});
        if (a.result.status == EPD_OK) {
            (void)agent_release(&c.a[r], 0, 1);
            agent_wait_good(&c.a[r], 0);
        }
        next[r] = agent_dispatch(&c.a[r], 0, 2).v[1];
    }
    check_int(next[0], next[1], "next epoch of the two ranks");
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_combine(&c.a[r], 0, next[r]);
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    cluster_run(&c, RUN_PLAIN, 3, 3);
    cluster_close(&c);
}

/* ---- late ranks ------------------------------------------------------------------------- */

static void is_late(const struct epd_result *r, int rank, uint64_t epoch, uint32_t phase)
{
    check_int(r->rank, rank, "late rank");
    check_int(r->epoch, epoch, "epoch");
    check_int(r->phase, phase, "phase");
    check_int(r->epoch_consumed, 1, "epoch_consumed");
}

/* Rank 2 is late for `step`: the others know after the timeout, it knows at once. */
static void late_dispatch(struct cluster *c, uint32_t step, uint64_t epoch)
{
    uint64_t start = now_ns();
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_dispatch(&c->a[r], 0, step);
    for (uint32_t r = 0; r < 2; r++) {
        struct epd_result got = agent_wait_status(&c->a[r], 0, EPD_ERANKLATE);
        is_late(&got, 2, epoch, EPD_PHASE_COUNTS);
    }
    const double ms = ms_since(start), limit = slow_ms(LATE_MS);
    check_true(ms >= limit * 0.95 && ms < limit + slow_ms(1500), "late after %.0f ms, not %.0f", ms,
               limit);
    start = now_ns();
    (void)agent_dispatch(&c->a[2], 0, step);
    struct epd_result got = agent_wait_status(&c->a[2], 0, EPD_ERANKLATE);
    is_late(&got, 2, epoch, EPD_PHASE_COUNTS);
    check_true(ms_since(start) < limit * 0.8, "the late rank was told after %.0f ms",
               ms_since(start));
    measured("rank late: peers told after %.0f ms (timeout %.0f), itself after %.1f ms", ms, limit,
             ms_since(start));
}

static void late_rank_dispatch(void **state)
{
    (void)state;
    struct cluster c, other;
    daemon_allow(&g_daemon, "late");
    daemon_allow(&g_daemon, "LATE");
    cluster_open(&other, &g_daemon, &(struct cluster_spec){.ranks = 3, .devices = 3});
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 3, .devices = 3, .timeout_ms = LATE_MS});
    cluster_post_run(&other, RUN_PIPELINED, 0, 200);
    late_dispatch(&c, 0, 0); /* the first op of the generation */
    cluster_step(&c, 1);
    late_dispatch(&c, 2, 2);
    late_dispatch(&c, 3, 3);
    cluster_run(&c, RUN_PLAIN, 4, 3);
    cluster_collect_run(&other); /* bit-equal, undisturbed */
    cluster_close(&c);
    cluster_close(&other);
}

/* Rank 2 dispatches but its combine does not come. */
static void late_rank_combine(void **state)
{
    (void)state;
    struct cluster c;
    uint64_t epoch = 0;
    daemon_allow(&g_daemon, "late");
    daemon_allow(&g_daemon, "LATE");
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){
                     .ranks = 3, .devices = 2, .b_pattern = B_FULL, .timeout_ms = LATE_MS});
    cluster_step(&c, 0);
    for (uint32_t r = 0; r < 3; r++)
        epoch = agent_dispatch(&c.a[r], 0, 1).v[1];
    for (uint32_t r = 0; r < 3; r++)
        agent_wait_good(&c.a[r], 0);
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_combine(&c.a[r], 0, epoch);
    for (uint32_t r = 0; r < 2; r++) {
        struct epd_result got = agent_wait_status(&c.a[r], 0, EPD_ERANKLATE);
        is_late(&got, 2, epoch, EPD_PHASE_READY);
    }
    uint64_t start = now_ns();
    (void)agent_combine(&c.a[2], 0, epoch);
    struct epd_result got = agent_wait_status(&c.a[2], 0, EPD_ERANKLATE);
    check_int(got.rank, 2, "late rank");
    check_true(ms_since(start) < slow_ms(LATE_MS) * 0.8, "told after %.0f ms", ms_since(start));
    cluster_run(&c, RUN_PLAIN, 2, 3);
    cluster_close(&c);
}

/* A whole row of epochs fails while rank 1 sleeps; it catches up one by one, then all go on. */
static void late_for_many(void **state)
{
    (void)state;
    struct cluster c;
    daemon_allow(&g_daemon, "late");
    daemon_allow(&g_daemon, "LATE");
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2, .timeout_ms = 60});
    for (uint32_t n = 0; n < 12; n++) {
        (void)agent_dispatch(&c.a[0], 0, n);
        struct epd_result got = agent_wait_status(&c.a[0], 0, EPD_ERANKLATE);
        is_late(&got, 1, n, EPD_PHASE_COUNTS);
    }
    for (uint32_t n = 0; n < 12; n++) {
        (void)agent_dispatch(&c.a[1], 0, n);
        struct agent_reply r = agent_wait(&c.a[1], 0, 5000);
        check_int(r.status, EPD_OK, "wait");
        check_true(r.result.status == EPD_ERANKLATE || r.result.status == EPD_EEPOCH,
                   "epoch %u of the late rank: %s", n, epd_status_string(r.result.status));
        check_int(r.result.epoch_consumed, 1, "epoch_consumed");
    }
    cluster_run(&c, RUN_PLAIN, 12, 4);
    cluster_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(tag_mismatch),         SUITE_TEST(tag_mismatch_of_three),
        SUITE_TEST(combine_tag_mismatch), SUITE_TEST(sequence_mismatch),
        SUITE_TEST(late_rank_dispatch),   SUITE_TEST(late_rank_combine),
        SUITE_TEST(late_for_many),
    };
    return cmocka_run_group_tests_name("epoch", tests, suite_setup, suite_teardown);
}
