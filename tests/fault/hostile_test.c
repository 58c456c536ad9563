/* test-timeout: 120 */
/* Clients that write what they like into what they own: their ring and their buffers. Each bad
 * entry is answered by one error; the engine stays; another group on the same engines is bit-equal.
 */
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/internal.h"
#include "proto/ring.h"
#include "proto/version.h"
#include "tests/support/agent_internal.h"
#include "tests/support/rng.h"

SUITE_DAEMON(.devices = 2, .workers = 2)

#define DEPTH 64u

/* ---- raw entries ------------------------------------------------------------------------ */

/* Publish an entry that libepd would not write. */
static void put(struct epd_lease *l, const struct epd_entry *e)
{
    struct epd_entry *slot = epd_ring_entry(l->area, l->depth, l->submitted);
    memcpy(slot, e, offsetof(struct epd_entry, seq));
    __atomic_store_n(&slot->seq, l->submitted + 1, __ATOMIC_SEQ_CST);
    l->submitted++;
    const uint64_t one = 1;
    (void)!write(l->bell, &one, sizeof(one));
}

static struct epd_entry good_entry(const struct seat *s)
{
    return (struct epd_entry){
        .abi = EPD_ABI_VERSION,
        .kind = EPD_OP_DISPATCH,
        .desc_index = s->dispatch->desc_index,
        .desc_generation = s->dispatch->desc_generation,
        .group_generation = s->lease->generation,
        .epoch = s->lease->next_epoch,
    };
}

/* Exactly one completion for the newest entry, an error; then nothing more. */
static bool refused(struct seat *s, const char *what, struct agent_reply *reply)
{
    struct epd_result r;
    const uint64_t ticket = s->lease->submitted - 1;
    enum epd_status status = epd_wait(s->lease, (int64_t)slow_ms(5000) * 1000000, &r);
    if (status != EPD_OK || r.status == EPD_OK || r.ticket != ticket || r.epoch_consumed) {
        (void)snprintf(reply->text, sizeof(reply->text),
                       "%s: wait %s, completion %s, ticket %llu of %llu, consumed %u", what,
                       epd_status_string(status), epd_status_string(r.status),
                       (unsigned long long)r.ticket, (unsigned long long)ticket, r.epoch_consumed);
        reply->bad = 1;
        return false;
    }
    s->lease->broken = EPD_OK; /* a wrong generation counts as a lost one: go on all the same */
    s->lease->next_epoch = 0;
    return true;
}

static void random_bytes(struct epd_entry *e, uint64_t n)
{
    rng_fill(n, e, sizeof(*e));
    if (e->abi == EPD_ABI_VERSION)
        e->abi++;
}

/* A good entry with one thing wrong. false: no such variant. */
static bool spoil(struct epd_entry *e, uint32_t variant, struct rng *rng)
{
    const uint64_t far = rng_next(rng) | (uint64_t)1 << 40;
    switch (variant) {
    case 0:
        e->abi = (uint16_t)(2 + rng_below(rng, 60000));
        return true;
    case 1:
        e->kind = (uint8_t)(5 + rng_below(rng, 250));
        return true;
    case 2:
        e->kind = 0;
        return true;
    case 3:
        e->kind = EPD_OP_POST_RECEIVE;
        return true;
    case 4:
        e->flags = (uint8_t)(4u << rng_below(rng, 6));
        return true;
    case 5:
        e->desc_index = 1 + rng_below(rng, 200) * 3 + 100;
        return true;
    case 6:
        e->desc_index = UINT32_MAX;
        return true;
    case 7:
        e->desc_generation += 1 + rng_below(rng, 1000);
        return true;
    case 8:
        e->kind = EPD_OP_COMBINE;
        return true; /* with a dispatch's descriptor */
    case 9:
        e->epoch += 1 + far % 1000;
        return true;
    case 10:
        e->epoch = UINT64_MAX - rng_below(rng, 3);
        return true;
    case 11:
        e->group_generation += 1 + rng_below(rng, 5000);
        return true;
    case 12:
        e->group_generation = 0;
        return true;
    case 13:
        e->b = UINT32_MAX - rng_below(rng, 1000);
        return true;
    case 14:
        e->b = 17;
        return true;
    case 15:
        e->b = 1, e->in_row = far;
        return true;
    case 16:
        e->b = 16, e->in_row = UINT64_MAX - rng_below(rng, 15);
        return true;
    case 17:
        e->set = 2 + far;
        return true;
    case 18:
        e->set = UINT64_MAX;
        return true;
    case 19:
        e->flags = EPD_ENTRY_B_INDIRECT, e->b_offset = far;
        return true;
    case 20:
        e->flags = EPD_ENTRY_B_INDIRECT, e->b_offset = UINT64_MAX - 3;
        return true;
    case 21:
        e->flags = EPD_ENTRY_NOTIFY, e->notify_offset = far;
        return true;
    case 22:
        e->flags = EPD_ENTRY_NOTIFY, e->notify_offset = UINT64_MAX - 7;
        return true;
    case 23:
        e->reserved[rng_below(rng, 6)] = far;
        return true;
    case 24:
        e->kind = EPD_OP_RELEASE, e->epoch = far;
        return true;
    case 25:
        e->kind = EPD_OP_RELEASE;
        return true; /* of a dispatch that was not made */
    default:
        return false;
    }
}

static AGENT_COMMAND(cmd_garbage)
{
    struct seat *s = st->seat[0];
    struct rng rng = rng_make(cmd->a[0], 0, 0);
    char what[64];
    for (uint32_t n = 0; n < 300; n++) {
        struct epd_entry e;
        random_bytes(&e, cmd->a[0] + n);
        put(s->lease, &e);
        if (!refused(s, "random bytes", reply))
            return;
        reply->v[0]++;
    }
    for (uint32_t round = 0; round < 8; round++) {
        struct epd_entry e = good_entry(s);
        for (uint32_t v = 0; spoil(&e, v, &rng); v++) {
            (void)snprintf(what, sizeof(what), "variant %u", v);
            put(s->lease, &e);
            if (!refused(s, what, reply))
                return;
            reply->v[0]++;
            e = good_entry(s);
        }
    }
    reply->bad = !seat_quiet(s, reply->text);
}

static void hostile_entries(void **state)
{
    (void)state;
    struct cluster victim, c;
    cluster_open(&victim, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 1, .flags = SEAT_NOTIFY, .depth = DEPTH});
    cluster_post_run(&victim, RUN_PIPELINED, 0, 400);
    struct agent_cmd cmd = {.fn = cmd_garbage, .a = {99}};
    struct agent_reply r = agent_call(&c.a[0], &cmd);
    measured("%d bad entries, %d errors", (int)r.v[0], (int)r.v[0]);
    check_true(r.v[0] >= 500, "only %d entries", (int)r.v[0]);
    cluster_run(&c, RUN_PLAIN, 0, 3); /* the same seat still works */
    cluster_collect_run(&victim);
    cluster_close(&c);
    cluster_close(&victim);
}

/* ---- the rest of the ring --------------------------------------------------------------- */

/* Everything in the ring area that is not ours to write, and far too many entries at once. */
static AGENT_COMMAND(cmd_wreck_ring)
{
    struct epd_lease *l = st->seat[0]->lease;
    struct rng rng = rng_make(cmd->a[0], 1, 0);
    const size_t bytes = epd_ring_bytes(l->depth);
    const uint64_t one = 1;
    uint64_t *words = l->area;
    for (uint32_t round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < 64; i++)
            __atomic_store_n(&words[rng_below(&rng, (uint32_t)(bytes / 8))], rng_next(&rng),
                             __ATOMIC_RELAXED);
        /* Valid sequence numbers too, so that rubbish is taken. */
        for (uint32_t i = 0; i < l->depth; i++)
            __atomic_store_n(&epd_ring_entry(l->area, l->depth, i)->seq, round * 7 + i + 1,
                             __ATOMIC_RELEASE);
        (void)!write(l->bell, &one, sizeof(one));
    }
    reply->v[0] = bytes;
}

static void wrecked_ring(void **state)
{
    (void)state;
    struct cluster victim, c;
    struct agent observer;
    daemon_allow(&g_daemon, "lost");
    daemon_allow(&g_daemon, "late");
    agent_start(&observer, &g_daemon);
    cluster_open(&victim, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_open(
        &c, &g_daemon,
        &(struct cluster_spec){.ranks = 2, .devices = 2, .depth = DEPTH, .timeout_ms = 1000});
    cluster_post_run(&victim, RUN_PIPELINED, 0, 400);
    for (uint32_t r = 0; r < 2; r++) {
        struct agent_cmd cmd = {.fn = cmd_wreck_ring, .a = {r}};
        agent_post(&c.a[r], &cmd);
    }
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_collect(&c.a[r], 30000);
    cluster_collect_run(&victim);
    for (uint32_t r = 0; r < 2; r++) {
        struct agent_reply s = agent_status(&observer);
        check_int(s.device[r].restarts, 0, "restarts of an engine");
        (void)agent_kill(&c.a[r]);
    }
    cluster_run(&victim, RUN_PLAIN, 1000, 3);
    cluster_close(&victim);
    agent_end(&observer);
}

/* ---- inputs that change under the engine ------------------------------------------------ */

struct flipper {
    struct seat *seat;
    _Atomic bool stop;
};

static void *flip(void *arg)
{
    struct flipper *f = arg;
    struct seat *s = f->seat;
    struct rng rng = rng_make(7, 7, 7);
    const size_t n = SEAT_TURNS * (size_t)s->c.w.shape.max_tokens * s->c.w.shape.topk;
    int64_t *ids = (int64_t *)(void *)(s->in.mem + s->ids);
    while (!atomic_load_explicit(&f->stop, memory_order_relaxed)) {
        const int64_t id = (int64_t)rng_below(&rng, 200) == 0
                               ? (int64_t)rng_next(&rng)
                               : (int64_t)rng_below(&rng, s->c.w.shape.experts);
        __atomic_store_n(&ids[rng_below(&rng, (uint32_t)n)], id, __ATOMIC_RELAXED);
        __atomic_store_n((uint32_t *)(void *)(s->in.mem + s->control),
                         (uint32_t)rng_next(&rng) % 20u, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* b and the ids change all the time: each op ends once, good or bad, and no guard is touched. */
static AGENT_COMMAND(cmd_flipping)
{
    struct seat *s = st->seat[0];
    struct flipper f = {.seat = s};
    pthread_t thread;
    if (pthread_create(&thread, NULL, flip, &f) != 0) {
        reply->bad = 1;
        return;
    }
    for (uint32_t n = 0; n < (uint32_t)cmd->a[0] && !reply->bad; n++) {
        struct epd_result r = {.status = EPD_EINTERNAL};
        struct epd_submit submit = EPD_SUBMIT_INIT;
        submit.flags = EPD_SUBMIT_B_INDIRECT;
        submit.b_offset = 0;
        enum epd_status status = epd_dispatch(s->dispatch, &submit, NULL);
        if (status == EPD_OK)
            status = epd_wait(s->lease, (int64_t)slow_ms(5000) * 1000000, &r);
        const bool good = status == EPD_OK && r.status == EPD_OK;
        reply->v[good ? 0 : 1]++;
        if (good)
            status = epd_release(s->lease, r.epoch, NULL);
        if (good && status == EPD_OK)
            status = epd_wait(s->lease, (int64_t)slow_ms(5000) * 1000000, &r);
        if (status != EPD_OK ||
            (r.status != EPD_OK && r.status != EPD_EROUTING && r.status != EPD_EINVAL)) {
            (void)snprintf(reply->text, sizeof(reply->text), "op %u: %s, completion %s", n,
                           epd_status_string(status), epd_status_string(r.status));
            reply->bad = 1;
        }
    }
    atomic_store_explicit(&f.stop, true, memory_order_relaxed);
    (void)pthread_join(thread, NULL);
    if (reply->bad)
        return;
    seat_forgive(s);
    memcpy(s->in.shadow + s->ids, s->in.mem + s->ids,
           SEAT_TURNS * (size_t)s->c.w.shape.max_tokens * s->ids_stride);
    reply->bad = !seat_quiet(s, reply->text);
}

static void inputs_that_change(void **state)
{
    (void)state;
    struct cluster victim, c;
    cluster_open(&victim, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 2});
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1, .flags = SEAT_B_INDIRECT});
    cluster_post_run(&victim, RUN_PIPELINED, 0, 200);
    struct agent_cmd cmd = {.fn = cmd_flipping, .a = {400}};
    struct agent_reply r = agent_call(&c.a[0], &cmd);
    measured("inputs that change: %d ops good, %d refused", (int)r.v[0], (int)r.v[1]);
    check_int(r.v[0] + r.v[1], 400, "completions");
    check_true(r.v[0] > 0 && r.v[1] > 0, "only good or only bad was seen: the test shows nothing");
    cluster_run(&c, RUN_PLAIN, 0, 2);
    cluster_collect_run(&victim);
    cluster_close(&c);
    cluster_close(&victim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(hostile_entries),
        SUITE_TEST(wrecked_ring),
        SUITE_TEST(inputs_that_change),
    };
    return cmocka_run_group_tests_name("hostile", tests, suite_setup, suite_teardown);
}
