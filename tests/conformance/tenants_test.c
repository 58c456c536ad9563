/* test-timeout: 120 */
/* Several groups through the same processes and engines: each must see exactly what it sees alone.
 * And what sessions, leases, groups and buffers promise. */
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/agent_internal.h"
#include "tests/support/rng.h"

SUITE_DAEMON(.devices = 3, .workers = 2)

/* ---- interleaved groups ----------------------------------------------------------------- */

#define GROUPS 4u
#define AGENTS 2u

static const struct {
    struct epd_shape shape;
    uint32_t routing, flags, sets;
} g_groups[GROUPS] = {
    {{4, 16, 16, 4, 64, EPD_DTYPE_BF16, EPD_MODE_LL, EPD_LAYOUT_EXPERT_MAJOR}, ROUTE_RANDOM, 0, 2},
    {{4, 8, 40, 2, 256, EPD_DTYPE_FP16, EPD_MODE_LL, EPD_LAYOUT_RANK_MAJOR}, ROUTE_ZIPF, 0, 2},
    {{2, 64, 5, 8, 24, EPD_DTYPE_FP32, EPD_MODE_LL, EPD_LAYOUT_EXPERT_MAJOR},
     ROUTE_DUPLICATES,
     SEAT_STRIDED,
     1},
    {{6, 6, 9, 1, 512, EPD_DTYPE_BF16, EPD_MODE_LL, EPD_LAYOUT_EXPERT_MAJOR},
     ROUTE_SOME_NONE,
     SEAT_IN_PLACE,
     1},
};

/* Runs the groups of `mask` together; digests[g] says what all seats' memory was at the end. */
static void run_groups(uint32_t mask, uint32_t steps, uint64_t seed, uint64_t *digests)
{
    struct agent a[AGENTS];
    uint32_t slot[AGENTS] = {0}, owner[GROUPS][8], at[GROUPS][8];
    for (uint32_t i = 0; i < AGENTS; i++) {
        agent_start(&a[i], &g_daemon);
        agent_open(&a[i]);
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct group_spec spec = {
            .shape = g_groups[g].shape, .ephemeral = 1, .timeout_ms = 20000, .has_placement = 1};
        struct seat_config s = {
            .w = {.shape = spec.shape,
                  .seed = 1000 + g,
                  .ids_type = 1 + g % 2,
                  .routing = g_groups[g].routing},
            .flags = g_groups[g].flags,
            .sets = g_groups[g].sets,
        };
        if (!(mask >> g & 1u))
            continue;
        (void)snprintf(spec.name, sizeof(spec.name), "tenant-%u", g);
        for (uint32_t r = 0; r < spec.shape.ranks; r++)
            spec.placement[r] = (r + g) % 3;
        s.group = agent_create(&a[0], &spec).v[0];
        for (uint32_t r = 0; r < spec.shape.ranks; r++) {
            s.rank = r;
            owner[g][r] = r % AGENTS;
            at[g][r] = slot[r % AGENTS]++;
            agent_seat(&a[owner[g][r]], at[g][r], &s);
        }
    }
    const struct run_args args = {.style = RUN_ACTORS, .steps = steps, .seed = seed};
    agents_run(a, AGENTS, &args);
    for (uint32_t g = 0; g < GROUPS; g++) {
        digests[g] = 0;
        for (uint32_t r = 0; (mask >> g & 1u) && r < g_groups[g].shape.ranks; r++) {
            struct agent_cmd cmd = {.fn = cmd_quiet, .slot = at[g][r]};
            digests[g] = rng_mix(digests[g] ^ agent_call(&a[owner[g][r]], &cmd).v[0]);
        }
    }
    for (uint32_t i = 0; i < AGENTS; i++)
        agent_end(&a[i]);
}

static void interleaved_equals_solo(void **state)
{
    (void)state;
    uint64_t together[GROUPS], again[GROUPS], alone[GROUPS];
    run_groups((1u << GROUPS) - 1, 20, 1, together);
    run_groups((1u << GROUPS) - 1, 20, 2, again);
    for (uint32_t g = 0; g < GROUPS; g++) {
        run_groups(1u << g, 20, 3, alone);
        check_true(together[g] == alone[g], "group %u: memory differs from its solo run", g);
        check_true(together[g] == again[g], "group %u: two runs differ", g);
        check_true(g == 0 || together[g] != together[g - 1], "digest does not depend on the data");
    }
}

/* ---- leases ----------------------------------------------------------------------------- */

static void expect_status(const struct agent_reply *r, enum epd_status want, const char *what,
                          const char *mention)
{
    check_true(r->status == want, "%s: %s (%s), expected %s", what, epd_status_string(r->status),
               r->err.message, epd_status_string(want));
    check_true(strstr(r->err.message, mention) != NULL, "%s: the message '%s' lacks '%s'", what,
               r->err.message, mention);
}

static struct agent_reply try_create(const struct agent *a, const struct group_spec *spec)
{
    struct agent_cmd cmd = {.fn = cmd_create};
    cmd.u.group = *spec;
    return agent_call(a, &cmd);
}

static void group_errors(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1});
    struct group_spec good = c.spec, spec = good;
    struct agent_reply r = try_create(&c.a[0], &spec);
    expect_status(&r, EPD_EEXIST, "same name", good.name);
    (void)snprintf(good.name, sizeof(good.name), "bad-one");
    const struct {
        size_t offset;
        uint32_t value;
        const char *mention;
    } bad[] = {
        {offsetof(struct epd_shape, ranks), 0, "ranks"},
        {offsetof(struct epd_shape, ranks), 65, "ranks"},
        {offsetof(struct epd_shape, experts), 0, "experts"},
        {offsetof(struct epd_shape, experts), 1025, "experts"},
        {offsetof(struct epd_shape, max_tokens), 0, "tokens"},
        {offsetof(struct epd_shape, max_tokens), 4097, "tokens"},
        {offsetof(struct epd_shape, topk), 0, "topk"},
        {offsetof(struct epd_shape, topk), 33, "topk"},
        {offsetof(struct epd_shape, hidden), 3, "hidden"},
        {offsetof(struct epd_shape, hidden), 0, "hidden"},
        {offsetof(struct epd_shape, hidden), 1u << 20, "hidden"},
        {offsetof(struct epd_shape, dtype), 9, "dtype"},
        {offsetof(struct epd_shape, mode), 2, "mode"},
        {offsetof(struct epd_shape, layout), 3, "layout"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        spec = good;
        memcpy((char *)&spec.shape + bad[i].offset, &bad[i].value, sizeof(uint32_t));
        r = try_create(&c.a[0], &spec);
        expect_status(&r, EPD_EINVAL, bad[i].mention, bad[i].mention);
    }
    spec = good;
    spec.placement[0] = 7;
    r = try_create(&c.a[0], &spec);
    expect_status(&r, EPD_EINVAL, "placement on a device that is not there", "device");
    spec = good;
    (void)snprintf(spec.name, sizeof(spec.name), "no/slash");
    r = try_create(&c.a[0], &spec);
    expect_status(&r, EPD_EINVAL, "name with a slash", "name");
    cluster_run(&c, RUN_PLAIN, 0, 2);
    cluster_close(&c);
}

static void lease_errors(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    struct seat_config s = c.seat;
    s.group = c.group;
    s.rank = 0;
    struct agent_reply r = agent_try_seat(&c.a[1], 1, &s);
    check_int(r.status, EPD_EBUSY, "seat that is leased");
    s.rank = 2;
    r = agent_try_seat(&c.a[1], 1, &s);
    check_int(r.status, EPD_EINVAL, "rank that does not exist");
    s.rank = 1;
    s.group = 0xffffu;
    r = agent_try_seat(&c.a[1], 1, &s);
    check_true(r.status == EPD_ENOENT || r.status == EPD_ESTALE, "group that never was: %s",
               epd_status_string(r.status));
    cluster_run(&c, RUN_PLAIN, 0, 3); /* nobody was disturbed */
    cluster_close(&c);
}

/* The id of a group that is gone never means another one, even in the same slot. */
static void stale_group_id(void **state)
{
    (void)state;
    struct cluster c, next;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1});
    const uint64_t old = c.group;
    cluster_close(&c);
    cluster_open(&next, &g_daemon, &(struct cluster_spec){.ranks = 1});
    check_true(next.group != old, "a group's id was given to another group");
    struct seat_config s = next.seat;
    s.group = old;
    s.takeover = 1;
    struct agent_reply r = agent_try_seat(&next.a[0], 1, &s);
    check_true(r.status == EPD_ESTALE || r.status == EPD_ENOENT, "lease by a stale id: %s",
               epd_status_string(r.status));
    measured("ids: %llx, then %llx", (unsigned long long)old, (unsigned long long)next.group);
    cluster_run(&next, RUN_PLAIN, 0, 2);
    cluster_close(&next);
}

/* ---- bind ------------------------------------------------------------------------------- */

static AGENT_COMMAND(cmd_bad_binds)
{
    struct seat *s = st->seat[0];
    struct epd_op *op = NULL;
    struct epd_dispatch_config d = EPD_DISPATCH_CONFIG_INIT;
    (void)cmd;
    d.x = (struct epd_array){s->in_buffer, s->x, 0, 0};
    d.ids = (struct epd_array){s->in_buffer, s->ids, 0, 0};
    d.recv = (struct epd_array){s->out_buffer, s->recv, 0, 0};
    d.counts = (struct epd_array){s->out_buffer, s->counts, 0, 0};
    struct epd_dispatch_config bad = d;
    bad.recv.offset = epd_buffer_bytes(s->out_buffer) - 64;
    reply->v[0] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "recv") != NULL;
    bad = d;
    bad.recv = (struct epd_array){s->in_buffer, 0, 0, 0}; /* imported: peers cannot write there */
    reply->v[1] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "recv") != NULL;
    bad = d;
    bad.x.offset += 8;
    reply->v[2] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "x") != NULL;
    bad = d;
    bad.counts.buffer = NULL;
    reply->v[3] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "counts") != NULL;
    bad = d;
    bad.x.stride = 16; /* less than a row */
    reply->v[4] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "x") != NULL;
    bad = d;
    bad.ids.offset = UINT64_MAX - 7;
    reply->v[5] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL &&
                  strstr(reply->err.message, "ids") != NULL;
    bad = d;
    bad.sets = 1000; /* recv is too small for so many */
    reply->v[6] = epd_dispatch_bind(s->lease, &bad, &op, &reply->err) == EPD_EINVAL;
    reply->v[7] = epd_buffer_free(s->out_buffer, NULL) == EPD_EBUSY; /* ops are bound to it */
}

static void bind_errors(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1, .flags = SEAT_IMPORT});
    struct agent_reply r = agent_call(&c.a[0], &(struct agent_cmd){.fn = cmd_bad_binds});
    for (uint32_t i = 0; i < 8; i++)
        check_true(r.v[i] == 1, "bad bind %u was not refused as it should be (last: %s)", i,
                   r.err.message);
    cluster_run(&c, RUN_PLAIN, 0, 2);
    cluster_close(&c);
}

/* ---- fork ------------------------------------------------------------------------------- */

static AGENT_COMMAND(cmd_fork)
{
    struct seat *s = st->seat[0];
    (void)cmd;
    pid_t pid = fork();
    if (pid == 0) {
        const struct epd_submit submit = EPD_SUBMIT_INIT;
        struct epd_result r;
        int bad = 0;
        bad |= epd_session_check(st->epd) != EPD_EFORKED ? 1 : 0;
        bad |= epd_dispatch(s->dispatch, &submit, NULL) != EPD_EFORKED ? 2 : 0;
        bad |= epd_poll(s->lease, &r) != EPD_EFORKED ? 4 : 0;
        bad |= epd_rearm(s->lease, NULL) != EPD_EFORKED ? 8 : 0;
        bad |= epd_buffer_free(s->in_buffer, NULL) != EPD_EFORKED ? 16 : 0;
        epd_close(st->epd);
        _exit(bad);
    }
    int code = 0;
    reply->v[0] = pid > 0 && waitpid(pid, &code, 0) == pid && WIFEXITED(code)
                      ? (uint64_t)WEXITSTATUS(code)
                      : 999;
}

static void forked_child_has_no_session(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    struct agent_reply r = agent_call(&c.a[0], &(struct agent_cmd){.fn = cmd_fork});
    check_int(r.v[0], 0, "calls that a forked child was not refused (bits)");
    cluster_run(&c, RUN_PLAIN, 2, 3); /* the parent's session lives */
    cluster_close(&c);
}

/* ---- ends ------------------------------------------------------------------------------- */

/* The daemon's books are empty again after every test of this file. */
static void nothing_stays(void **state)
{
    (void)state;
    struct agent a;
    agent_start(&a, &g_daemon);
    struct agent_reply r = agent_status(&a);
    check_int(r.v[1], 0, "sessions");
    check_int(r.v[2], 0, "groups");
    for (uint32_t i = 0; i < 3; i++) {
        check_int(r.device[i].seats, 0, "seats of a device");
        check_int(r.device[i].restarts, 0, "restarts of a device");
        check_true(r.device[i].ops > 0, "device %u did nothing", i);
        measured("device %u: %llu ops, %llu chunks left", i, (unsigned long long)r.device[i].ops,
                 (unsigned long long)r.device[i].chunks);
    }
    agent_end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(interleaved_equals_solo),
        SUITE_TEST(group_errors),
        SUITE_TEST(lease_errors),
        SUITE_TEST(stale_group_id),
        SUITE_TEST(bind_errors),
        SUITE_TEST(forked_child_has_no_session),
        SUITE_TEST(nothing_stays),
    };
    return cmocka_run_group_tests_name("tenants", tests, suite_setup, suite_teardown);
}
