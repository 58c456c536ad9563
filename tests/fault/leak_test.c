/* test-timeout: 120 */
/* Nothing stays behind: cycles of attach, work and SIGKILL, then descriptors, threads, mappings,
 * memory and chunks of daemon and engines are back where they were. */
#include "tests/support/suite.h"

#include "tests/support/agent_internal.h"
#include "tests/support/rng.h"

SUITE_DAEMON(.devices = 2, .workers = 1)

#define WARM_UP 4u
#define CYCLES 30u
/* Sanitizers keep freed memory: there the other figures must do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RSS_SLACK_KB (1u << 20)
#define MAPS_SLACK 64u
#else
#define RSS_SLACK_KB 3072u
#define MAPS_SLACK 8u
#endif

struct state {
    struct procfs_usage process[3];
    struct agent_reply status;
};

static bool is_empty(void *arg)
{
    struct agent_reply r = agent_status(arg);
    return r.v[1] == 0 && r.v[2] == 0;
}

static void look(const struct agent *observer, struct state *out)
{
    pid_t pid[3] = {g_daemon.pid};
    check_true(wait_until(is_empty, (void *)(uintptr_t)observer, slow_ms(5000)),
               "sessions or groups stay behind");
    sleep_ms(slow_ms(300)); /* chunks go after the revoke */
    check_int(daemon_engines(&g_daemon, pid + 1, 2), 2, "engines");
    for (int i = 0; i < 3; i++)
        out->process[i] = procfs_usage(pid[i]);
    out->status = agent_status(observer);
}

/* One life of two clients: sometimes killed before anything, in the middle, or behind an op. */
static void cycle(uint32_t n, struct rng *rng)
{
    struct cluster c;
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){
                     .ranks = 2, .devices = 2, .sets = 1, .flags = n % 3 == 0 ? SEAT_IMPORT : 0});
    if (n % 4 != 0)
        cluster_run(&c, RUN_PLAIN, 0, 2);
    if (n % 2 != 0)
        for (uint32_t r = 0; r < 2; r++)
            agent_post_until_lost(&c.a[r], 0, 2, false, 0);
    sleep_ms((int)rng_below(rng, 12));
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_kill(&c.a[r]);
}

static void cycles_of_death(void **state)
{
    (void)state;
    struct agent observer;
    struct state before, after;
    struct rng rng = rng_make(11, 0, 0);
    daemon_allow(&g_daemon, "lost");
    daemon_allow(&g_daemon, "died");
    agent_start(&observer, &g_daemon);
    for (uint32_t n = 0; n < WARM_UP; n++)
        cycle(n, &rng);
    look(&observer, &before);
    uint64_t start = now_ns();
    for (uint32_t n = 0; n < CYCLES; n++)
        cycle(n, &rng);
    const double ms = ms_since(start) / CYCLES;
    look(&observer, &after);
    measured("%u cycles of two clients, %.0f ms each", CYCLES, ms);
    for (int i = 0; i < 3; i++) {
        const struct procfs_usage *b = &before.process[i], *a = &after.process[i];
        const char *who = i == 0 ? "daemon" : "engine";
        measured("%s: fds %u -> %u, threads %u -> %u, maps %u -> %u, RSS %d -> %d KiB", who, b->fds,
                 a->fds, b->threads, a->threads, b->maps, a->maps, (int)b->rss_kb, (int)a->rss_kb);
        check_true(a->fds <= b->fds, "%s: %u descriptors more", who, a->fds - b->fds);
        /* gRPC's own threads and malloc's arenas may come and go. */
        check_true(a->threads <= b->threads + 4, "%s: %u threads more", who,
                   a->threads - b->threads);
        check_true(a->maps <= b->maps + MAPS_SLACK, "%s: %u mappings more", who, a->maps - b->maps);
        check_true(a->rss_kb <= b->rss_kb + RSS_SLACK_KB, "%s: RSS %d KiB more", who,
                   (int)(a->rss_kb - b->rss_kb));
    }
    for (int i = 0; i < 2; i++) {
        check_int(after.status.device[i].chunks, before.status.device[i].chunks, "chunks");
        check_int(after.status.device[i].chunk_bytes, before.status.device[i].chunk_bytes,
                  "chunk bytes");
        check_int(after.status.device[i].seats, 0, "seats");
        check_int(after.status.device[i].restarts, 0, "restarts");
    }
    agent_end(&observer);
}

/* One session that opens and closes a hundred things. */
static AGENT_COMMAND(cmd_churn)
{
    for (uint32_t n = 0; n < (uint32_t)cmd->a[0]; n++) {
        struct epd_buffer *b = NULL;
        reply->status = epd_buffer_alloc(st->epd, n % 2, 4096u * (1 + n % 700), &b, &reply->err);
        if (reply->status == EPD_OK)
            reply->status = epd_buffer_free(b, &reply->err);
        if (reply->status == EPD_OK) {
            struct seat *s = seat_open(st->epd, &cmd->u.seat, &reply->err);
            reply->status = s ? EPD_OK : reply->err.status;
            seat_close(s);
        }
        if (reply->status != EPD_OK)
            return;
    }
}

static void churn_in_a_session(void **state)
{
    (void)state;
    struct agent observer;
    struct state before, after;
    struct cluster c;
    daemon_allow(&g_daemon, "lost");
    agent_start(&observer, &g_daemon);
    look(&observer, &before);
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2, .keep = 1});
    agent_end(&c.a[1]); /* its seat is the one that is taken and left */
    struct agent_cmd churn = {.fn = cmd_churn, .a = {100}};
    churn.u.seat = c.seat;
    churn.u.seat.group = c.group;
    churn.u.seat.rank = 1;
    struct agent_reply r = agent_call(&c.a[0], &churn);
    check_true(r.status == EPD_OK, "churn: %s: %s", epd_status_string(r.status), r.err.message);
    struct agent_cmd destroy = {.fn = cmd_destroy, .a = {c.group, 1}};
    r = agent_call(&c.a[0], &destroy);
    check_true(r.status == EPD_OK, "destroy: %s: %s", epd_status_string(r.status), r.err.message);
    cluster_close(&c);
    look(&observer, &after);
    for (int i = 0; i < 3; i++)
        check_true(after.process[i].fds <= before.process[i].fds, "%u descriptors more",
                   after.process[i].fds - before.process[i].fds);
    for (int i = 0; i < 2; i++)
        check_int(after.status.device[i].chunks, before.status.device[i].chunks, "chunks");
    agent_end(&observer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(cycles_of_death),
        SUITE_TEST(churn_in_a_session),
    };
    return cmocka_run_group_tests_name("leak", tests, suite_setup, suite_teardown);
}
