/* The op state machines, driven step by step: two engines in this process share exchange and buffer
 * chunks, as two engine processes would; the control channel and the bells are stubbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/transport.h"
#include "proto/exchange.h"
#include "proto/ring.h"
#include "proto/version.h"

#define R 4u
#define E 8u
#define K 2u
#define B 4u
#define H 8u
#define GROUP 7u
#define DEPTH 16u

/* ---- stubs of control.c and peers.c ---- */

static struct epd_msg_epoch g_report;
static unsigned g_reports;
static uint64_t g_replied;

void epd_control_reply(struct epd_engine *engine, uint64_t seq, const struct epd_error *err)
{
    (void)engine;
    assert_true(err == NULL || err->status == EPD_OK);
    g_replied = seq;
}
void epd_control_report(struct epd_engine *engine, struct epd_msg_epoch *msg)
{
    (void)engine;
    g_report = *msg;
    g_reports++;
}
void epd_engine_publish_to(struct epd_engine *engine, uint32_t device)
{
    (void)engine;
    (void)device;
}

/* ---- the world ---- */

struct rank_mem { /* one rank's buffer: all arrays at fixed offsets */
    float x[B][H];
    int64_t ids[B][K];
    float weights[B][K];
    float recv[2][2 * R * B][H]; /* L = 2 local experts (rank-major: R * B rows a set) */
    int32_t counts[2][R];
    int32_t ranges[2][2 * R][2];
    int32_t src[2][2 * R * B];
    int32_t recv_ids[2][R * B][K];
    float recv_weights[2][R * B][K];
    float out[B][H];
    uint64_t control[8];
};

struct world {
    struct epd_engine engine[2];
    struct rank_mem *mem[R];
    uint8_t *ring[R];
    uint64_t submitted[R], consumed[R];
    uint32_t generation;
    uint32_t layout;
};

static void chunk_everywhere(struct world *w, uint64_t id, uint64_t bytes, uint32_t kind,
                             uint32_t owner)
{
    struct epd_msg_chunk msg = {.chunk = id, .bytes = bytes, .kind = kind, .device = owner};
    int fd = -1;
    assert_int_equal(epd_chunks_add_new(w->engine[owner].chunks, &msg, &fd, NULL), EPD_OK);
    assert_int_equal(epd_chunks_adopt(w->engine[1 - owner].chunks, &msg, fd, NULL), EPD_OK);
    close(fd);
}

static uint32_t device_of(uint32_t rank)
{
    return rank == 3 ? 1 : 0; /* uneven on purpose */
}

#define REF(rank, member)                                                                          \
    {                                                                                              \
        .chunk = 100 + (rank), .offset = offsetof(struct rank_mem, member),                        \
        .bytes = sizeof(((struct rank_mem *)0)->member),                                           \
        .stride = sizeof(((struct rank_mem *)0)->member[0])                                        \
    }

static void bind_rank(struct world *w, uint32_t rank)
{
    const bool rank_major = w->layout == EPD_LAYOUT_RANK_MAJOR;
    struct epd_engine *engine = &w->engine[device_of(rank)];
    struct epd_msg_desc d = {
        .group = GROUP,
        .rank = rank,
        .desc_index = 0,
        .desc_generation = 1,
        .kind = EPD_OP_DISPATCH,
        .ids_type = EPD_IDS_INT64,
        .sets = 2,
        .array = {[EPD_ARRAY_X] = REF(rank, x),
                  [EPD_ARRAY_IDS] = REF(rank, ids),
                  [EPD_ARRAY_WEIGHTS] = REF(rank, weights),
                  [EPD_ARRAY_RECV] = REF(rank, recv),
                  [EPD_ARRAY_COUNTS] = REF(rank, counts),
                  [EPD_ARRAY_SRC] = REF(rank, src),
                  [EPD_ARRAY_CONTROL] = REF(rank, control)},
    };
    d.array[EPD_ARRAY_RECV].stride = H * 4u;
    if (rank_major) {
        d.array[EPD_ARRAY_RECV_IDS] = (struct epd_array_ref)REF(rank, recv_ids);
        d.array[EPD_ARRAY_RECV_WEIGHTS] = (struct epd_array_ref)REF(rank, recv_weights);
    } else {
        d.array[EPD_ARRAY_RANGES] = (struct epd_array_ref)REF(rank, ranges);
    }
    struct epd_error err = {0};
    if (epd_groups_desc_set(engine, &d, &err) != EPD_OK)
        fail_msg("%s", err.message);
    struct epd_msg_desc c = {
        .group = GROUP,
        .rank = rank,
        .desc_index = 1,
        .desc_generation = 1,
        .kind = EPD_OP_COMBINE,
        .sets = 2,
        .array = {[EPD_ARRAY_ROWS] = d.array[EPD_ARRAY_RECV],
                  [EPD_ARRAY_WEIGHTS] = REF(rank, weights),
                  [EPD_ARRAY_OUT] = REF(rank, out)},
    };
    if (epd_groups_desc_set(engine, &c, &err) != EPD_OK)
        fail_msg("%s", err.message);
}

static void lease_rank(struct world *w, uint32_t rank)
{
    struct epd_engine *engine = &w->engine[device_of(rank)];
    struct epd_msg_seat msg = {
        .group = GROUP, .rank = rank, .depth = DEPTH, .chunk = 200 + rank, .offset = 0};
    assert_int_equal(epd_groups_seat_set(engine, &msg, NULL), EPD_OK);
    w->ring[rank] = epd_chunks_find(engine->chunks, 200 + rank)->base;
    w->mem[rank] = (void *)epd_chunks_find(engine->chunks, 100 + rank)->base;
    w->submitted[rank] = w->consumed[rank] = 0;
    bind_rank(w, rank);
}

static struct world *world_new(uint32_t layout)
{
    struct world *w = calloc(1, sizeof(*w));
    w->generation = 1;
    w->layout = layout;
    g_reports = 0;
    for (uint32_t d = 0; d < 2; d++) {
        w->engine[d].device = d;
        w->engine[d].transport = &epd_transport_host;
        assert_int_equal(epd_chunks_create(&epd_transport_host, &w->engine[d].chunks, NULL),
                         EPD_OK);
        assert_int_equal(epd_workers_create(1, &w->engine[d].workers, NULL), EPD_OK);
    }
    struct epd_msg_group msg = {
        .group = GROUP,
        .generation = 1,
        .armed = 1,
        .shape = {.ranks = R,
                  .experts = E,
                  .max_tokens = B,
                  .topk = K,
                  .hidden = H,
                  .dtype = EPD_DTYPE_FP32,
                  .mode = EPD_MODE_LL,
                  .layout = layout},
        .timeout_ms = 1000,
        .first_timeout_ms = 1000,
        .present = (1u << R) - 1,
        .exchange = {1, 2},
    };
    for (uint32_t d = 0; d < 2; d++)
        chunk_everywhere(w, 1 + d, epd_exchange_bytes(&msg.shape), EPD_CHUNK_EXCHANGE, d);
    for (uint32_t r = 0; r < R; r++) {
        msg.device[r] = (uint8_t)device_of(r);
        chunk_everywhere(w, 100 + r, (sizeof(struct rank_mem) + 4095) & ~4095ul, EPD_CHUNK_BUFFERS,
                         device_of(r));
        chunk_everywhere(w, 200 + r, epd_ring_bytes(DEPTH), EPD_CHUNK_RINGS, device_of(r));
    }
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(epd_groups_set(&w->engine[d], &msg, NULL), EPD_OK);
    for (uint32_t r = 0; r < R; r++)
        lease_rank(w, r);
    return w;
}

static void world_free(struct world *w)
{
    for (uint32_t d = 0; d < 2; d++) {
        epd_groups_poison(&w->engine[d], EPD_EDAEMONLOST);
        epd_workers_destroy(w->engine[d].workers);
        epd_chunks_destroy(w->engine[d].chunks);
    }
    free(w);
}

static void run(struct world *w)
{
    for (unsigned quiet = 0; quiet < 4;) {
        quiet++;
        for (uint32_t d = 0; d < 2; d++) {
            w->engine[d].now_ns = epd_now_ns();
            if (epd_groups_step(&w->engine[d]))
                quiet = 0;
            while (epd_workers_run_one(w->engine[d].workers))
                quiet = 0;
        }
    }
}

static uint64_t submit(struct world *w, uint32_t rank, struct epd_entry e)
{
    const uint64_t ticket = w->submitted[rank]++;
    struct epd_entry *slot = epd_ring_entry(w->ring[rank], DEPTH, ticket);
    e.abi = EPD_ABI_VERSION;
    e.group_generation = e.group_generation ? e.group_generation : w->generation;
    e.desc_index = e.kind == EPD_OP_COMBINE ? 1 : 0;
    e.desc_generation = 1;
    e.seq = 0;
    *slot = e;
    __atomic_store_n(&slot->seq, ticket + 1, __ATOMIC_SEQ_CST);
    return ticket;
}

static bool poll_one(struct world *w, uint32_t rank, struct epd_completion *out)
{
    const struct epd_completion *c = epd_ring_completion(w->ring[rank], DEPTH, w->consumed[rank]);
    if (__atomic_load_n(&c->seq, __ATOMIC_ACQUIRE) != w->consumed[rank] + 1)
        return false;
    *out = *c;
    w->consumed[rank]++;
    return true;
}

static void expect(struct world *w, uint32_t rank, int status)
{
    struct epd_completion c;
    if (!poll_one(w, rank, &c))
        fail_msg("rank %u: no completion", rank);
    if (c.status != status)
        fail_msg("rank %u: status %d (phase %u rank %d field %u value %llu), expected %d", rank,
                 c.status, c.phase, c.rank, c.field, (unsigned long long)c.value, status);
}

/* rank r, token t, column h; ids spread so that every rank gets uneven work. */
static float value(uint32_t r, uint32_t t, uint32_t h)
{
    return (float)(100 * r + 10 * t + h);
}
static int64_t id_of(uint32_t r, uint32_t t, uint32_t k)
{
    if (r == 2 && t == 1)
        return -1;
    return (int64_t)((3 * r + 5 * t + 2 * k) % E);
}
static uint32_t tokens_of(uint32_t r)
{
    return r == 1 ? 0 : r == 2 ? 3 : B;
}

static void fill(struct world *w)
{
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t t = 0; t < B; t++) {
            for (uint32_t h = 0; h < H; h++)
                w->mem[r]->x[t][h] = value(r, t, h);
            for (uint32_t k = 0; k < K; k++) {
                w->mem[r]->ids[t][k] = id_of(r, t, k);
                w->mem[r]->weights[t][k] = 0.25f * (float)(k + 1);
            }
        }
}

static void dispatch_all(struct world *w, uint64_t epoch, uint64_t set)
{
    for (uint32_t r = 0; r < R; r++)
        submit(
            w, r,
            (struct epd_entry){
                .kind = EPD_OP_DISPATCH, .epoch = epoch, .b = tokens_of(r), .set = set, .tag = 5});
}
static void combine_all(struct world *w, uint64_t epoch, uint64_t set)
{
    for (uint32_t r = 0; r < R; r++)
        submit(w, r,
               (struct epd_entry){.kind = EPD_OP_COMBINE, .epoch = epoch, .set = set, .tag = 6});
}
static void expect_all(struct world *w, int status)
{
    run(w);
    for (uint32_t r = 0; r < R; r++)
        expect(w, r, status);
}

/* Naive check of the received rows of expert-major. */
static void check_expert_rows(struct world *w, uint64_t set)
{
    for (uint32_t e = 0; e < E; e++) {
        const uint32_t d = e / 2, le = e % 2;
        uint32_t n = 0;
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t t = 0; t < tokens_of(r); t++)
                if (id_of(r, t, 0) == (int64_t)e || id_of(r, t, 1) == (int64_t)e) {
                    const uint32_t row = le * R * B + n++;
                    assert_true(w->mem[d]->recv[set][row][3] == value(r, t, 3));
                    assert_int_equal(w->mem[d]->src[set][row], t);
                }
        const int32_t *counts = (const int32_t *)w->mem[d]->counts + set * 2;
        assert_int_equal(counts[le], n);
    }
}

/* Experts are y = x * (1 + e); in place. */
static void run_experts(struct world *w, uint64_t set)
{
    for (uint32_t d = 0; d < R; d++)
        for (uint32_t le = 0; le < 2; le++)
            for (uint32_t i = 0; i < R * B; i++)
                for (uint32_t h = 0; h < H; h++)
                    w->mem[d]->recv[set][le * R * B + i][h] *= (float)(1 + d * 2 + le);
}

static void check_combined(struct world *w)
{
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t t = 0; t < tokens_of(r); t++)
            for (uint32_t h = 0; h < H; h++) {
                float want = 0.0f;
                for (uint32_t k = 0; k < K; k++)
                    if (id_of(r, t, k) >= 0)
                        want = fmaf(0.25f * (float)(k + 1),
                                    value(r, t, h) * (float)(1 + id_of(r, t, k)), want);
                assert_true(w->mem[r]->out[t][h] == want);
            }
}

static void test_round_trip(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    for (uint64_t epoch = 0; epoch < 9; epoch++) {
        const uint64_t set = epoch % 2;
        dispatch_all(w, epoch, set);
        expect_all(w, EPD_OK);
        check_expert_rows(w, set);
        run_experts(w, set);
        combine_all(w, epoch, set);
        expect_all(w, EPD_OK);
        check_combined(w);
    }
    assert_int_equal(g_reports, 0);
    world_free(w);
}

static void test_rank_major(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_RANK_MAJOR);
    fill(w);
    for (uint32_t d = 0; d < R; d++)
        memset(w->mem[d]->recv_ids, 0x55, sizeof(w->mem[d]->recv_ids));
    dispatch_all(w, 0, 0);
    expect_all(w, EPD_OK);
    for (uint32_t d = 0; d < R; d++)
        for (uint32_t r = 0; r < R; r++) {
            uint32_t n = 0;
            for (uint32_t t = 0; t < tokens_of(r); t++) {
                const int64_t a = id_of(r, t, 0), b = id_of(r, t, 1);
                if ((a < 0 || a / 2 != d) && (b < 0 || b / 2 != d))
                    continue;
                const uint32_t row = r * B + n++;
                const float(*recv)[H] = (const float(*)[H])w->mem[d]->recv;
                assert_true(recv[row][1] == value(r, t, 1));
                assert_int_equal(((int32_t *)w->mem[d]->src)[row], t);
                assert_int_equal(w->mem[d]->recv_ids[0][row][0], a >= 0 && a / 2 == d ? a % 2 : -1);
                assert_int_equal(w->mem[d]->recv_ids[0][row][1], b >= 0 && b / 2 == d ? b % 2 : -1);
                assert_true(w->mem[d]->recv_weights[0][row][1] ==
                            (b >= 0 && b / 2 == d ? 0.5f : 0.0f));
            }
            assert_int_equal(w->mem[d]->counts[0][r], n);
        }
    world_free(w);
}

static void test_pipelined(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    dispatch_all(w, 0, 0);
    expect_all(w, EPD_OK);
    run_experts(w, 0);
    combine_all(w, 0, 0); /* dispatch 1 into the same set: held until the rows were read */
    dispatch_all(w, 1, 0);
    run(w);
    for (uint32_t r = 0; r < R; r++) {
        expect(w, r, EPD_OK);
        struct epd_completion c;
        assert_true(poll_one(w, r, &c));
        assert_int_equal(c.status, EPD_OK);
        assert_true(c.released_epoch >= 1);
    }
    check_combined(w);
    check_expert_rows(w, 0);
    world_free(w);
}

static void test_third_dispatch(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    dispatch_all(w, 0, 0);
    dispatch_all(w, 1, 1);
    dispatch_all(w, 2, 0);
    expect_all(w, EPD_OK);
    for (uint32_t r = 0; r < R; r++)
        expect(w, r, EPD_OK);
    for (uint32_t r = 0; r < R; r++)
        expect(w, r, EPD_EUNRELEASED);
    for (uint32_t r = 0; r < R; r++)
        submit(w, r, (struct epd_entry){.kind = EPD_OP_RELEASE, .epoch = 0});
    dispatch_all(w, 2, 0);
    expect_all(w, EPD_OK);
    expect_all(w, EPD_OK);
    world_free(w);
}

/* A dispatch that has to stay in the ring is no reason to stay awake. */
static void test_waits_asleep(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    dispatch_all(w, 0, 0);
    dispatch_all(w, 1, 1);
    expect_all(w, EPD_OK);
    for (uint32_t r = 0; r < R; r++)
        expect(w, r, EPD_OK);
    for (uint32_t r = 0; r < 3; r++) /* rank 3 reads nobody's rows */
        for (uint64_t epoch = 0; epoch < 5; epoch++) {
            if (epoch < 2)
                submit(w, r,
                       (struct epd_entry){
                           .kind = EPD_OP_COMBINE, .epoch = epoch, .set = epoch, .tag = 6});
            else
                submit(w, r,
                       (struct epd_entry){.kind = EPD_OP_DISPATCH,
                                          .epoch = epoch,
                                          .tag = 5,
                                          .set = epoch % 2,
                                          .b = tokens_of(r)});
        }
    run(w);
    assert_false(epd_groups_pending(&w->engine[0]));
    combine_all(w, 0, 0); /* ranks 0..2: a second one is refused; rank 3: its first */
    run(w);
    struct epd_completion c;
    assert_true(poll_one(w, 3, &c));
    assert_int_equal(c.status, EPD_OK);
    world_free(w);
}

static void test_bad_ids(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    w->mem[0]->ids[2][1] = E;
    dispatch_all(w, 0, 0);
    run(w);
    struct epd_completion c;
    assert_true(poll_one(w, 0, &c));
    assert_int_equal(c.status, EPD_EROUTING);
    assert_int_equal(c.field, EPD_FIELD_IDS);
    assert_int_equal(c.value, (uint64_t)(2 * K + 1) << 32 | E);
    assert_int_equal(c.flags & EPD_COMPLETION_EPOCH_CONSUMED, 0);
    w->mem[0]->ids[2][1] = id_of(0, 2, 1);
    submit(w, 0, (struct epd_entry){.kind = EPD_OP_DISPATCH, .epoch = 0, .b = B, .tag = 5});
    expect_all(w, EPD_OK);
    check_expert_rows(w, 0);
    world_free(w);
}

static void test_mismatch(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    for (uint32_t r = 0; r < R; r++)
        submit(w, r, (struct epd_entry){.kind = EPD_OP_DISPATCH, .b = 1, .tag = r == 3 ? 9 : 5});
    run(w);
    assert_true(g_reports > 0);
    assert_int_equal(g_report.status, EPD_EMISMATCH);
    assert_int_equal(g_report.other_rank, 3);
    world_free(w);
}

static void revoke_and(struct world *w, uint64_t epoch, int status, int rank)
{
    struct epd_msg_epoch m = {.h.seq = 9,
                              .group = GROUP,
                              .epoch = epoch,
                              .generation = w->generation,
                              .status = status,
                              .rank = rank,
                              .other_rank = -1,
                              .phase = EPD_PHASE_COUNTS};
    for (uint32_t d = 0; d < 2; d++) {
        g_replied = 0;
        assert_int_equal(epd_groups_revoke(&w->engine[d], &m, NULL), EPD_OK);
        run(w);
        assert_int_equal(g_replied, 9);
    }
}

static void test_late_rank(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    for (uint32_t r = 0; r < R - 1; r++)
        submit(w, r, (struct epd_entry){.kind = EPD_OP_DISPATCH, .b = tokens_of(r), .tag = 5});
    run(w);
    assert_int_equal(g_reports, 0);
    assert_true(epd_groups_deadline(&w->engine[0]) < UINT64_MAX);
    for (unsigned i = 0; i < 100 && g_reports == 0; i++) {
        usleep(20000);
        run(w);
    }
    assert_int_equal(g_report.status, EPD_ERANKLATE);
    assert_int_equal(g_report.rank, 3);
    assert_int_equal(g_report.phase, EPD_PHASE_COUNTS);
    revoke_and(w, 0, EPD_ERANKLATE, 3);
    struct epd_msg_epoch m = {.group = GROUP,
                              .epoch = 0,
                              .generation = 1,
                              .status = EPD_ERANKLATE,
                              .rank = 3,
                              .other_rank = -1};
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(epd_groups_fail(&w->engine[d], &m, NULL), EPD_OK);
    run(w);
    for (uint32_t r = 0; r < R - 1; r++)
        expect(w, r, EPD_ERANKLATE);
    submit(w, 3, (struct epd_entry){.kind = EPD_OP_DISPATCH, .b = 1, .tag = 5});
    run(w);
    expect(w, 3, EPD_ERANKLATE); /* told at once */
    dispatch_all(w, 1, 0);
    expect_all(w, EPD_OK);
    check_expert_rows(w, 0);
    world_free(w);
}

static void test_generation(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    for (uint32_t r = 0; r < R - 1; r++)
        for (uint64_t e = 0; e < 2; e++)
            submit(w, r,
                   (struct epd_entry){
                       .kind = EPD_OP_DISPATCH, .epoch = e, .set = e, .b = tokens_of(r), .tag = 5});
    run(w);
    revoke_and(w, EPD_EPOCH_ALL, 0, -1);
    struct epd_msg_epoch m = {.group = GROUP,
                              .epoch = EPD_EPOCH_ALL,
                              .generation = 2,
                              .status = EPD_ERANKLOST,
                              .rank = 3,
                              .other_rank = -1,
                              .present = (1u << R) - 1};
    submit(w, 0,
           (struct epd_entry){.kind = EPD_OP_DISPATCH, .epoch = 2}); /* published, not taken */
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(epd_groups_generation(&w->engine[d], &m, NULL), EPD_OK);
    for (uint32_t r = 0; r < R - 1; r++)
        for (uint64_t e = 0; e < 2; e++)
            expect(w, r, EPD_ERANKLOST);
    expect(w, 0, EPD_ERANKLOST);
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(epd_groups_arm(&w->engine[d], &m, NULL), EPD_OK);
    submit(w, 1, (struct epd_entry){.kind = EPD_OP_DISPATCH, .group_generation = 1});
    run(w);
    expect(w, 1, EPD_ERANKLOST); /* stale generation: the cause of the change */
    w->generation = 2;
    dispatch_all(w, 0, 0);
    expect_all(w, EPD_OK);
    check_expert_rows(w, 0);
    world_free(w);
}

static void test_bad_entries(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    const struct {
        struct epd_entry e;
        int status, field;
    } cases[] = {
        {{.kind = 0}, EPD_EINVAL, EPD_FIELD_KIND},
        {{.kind = 9}, EPD_EINVAL, EPD_FIELD_KIND},
        {{.kind = EPD_OP_POST_RECEIVE}, EPD_EUNSUPPORTED, EPD_FIELD_KIND},
        {{.kind = EPD_OP_DISPATCH, .flags = 0x80}, EPD_EINVAL, EPD_FIELD_FLAGS},
        {{.kind = EPD_OP_DISPATCH, .b = B + 1}, EPD_EINVAL, EPD_FIELD_B},
        {{.kind = EPD_OP_DISPATCH, .set = 2}, EPD_EINVAL, EPD_FIELD_SET},
        {{.kind = EPD_OP_DISPATCH, .b = 1, .in_row = B}, EPD_EINVAL, EPD_FIELD_IN_ROW},
        {{.kind = EPD_OP_DISPATCH, .b = 1, .in_row = UINT64_MAX}, EPD_EINVAL, EPD_FIELD_IN_ROW},
        {{.kind = EPD_OP_DISPATCH, .epoch = 1}, EPD_EORDER, EPD_FIELD_EPOCH},
        {{.kind = EPD_OP_DISPATCH, .reserved = {1}}, EPD_EINVAL, EPD_FIELD_RESERVED},
        {{.kind = EPD_OP_DISPATCH, .flags = EPD_ENTRY_NOTIFY, .notify_offset = 64},
         EPD_EINVAL,
         EPD_FIELD_NOTIFY_OFFSET},
        {{.kind = EPD_OP_DISPATCH, .flags = EPD_ENTRY_NOTIFY, .notify_offset = UINT64_MAX - 7},
         EPD_EINVAL,
         EPD_FIELD_NOTIFY_OFFSET},
        {{.kind = EPD_OP_DISPATCH, .flags = EPD_ENTRY_B_INDIRECT, .b_offset = 62},
         EPD_EINVAL,
         EPD_FIELD_B_OFFSET},
        {{.kind = EPD_OP_COMBINE, .epoch = 0}, EPD_EORDER, EPD_FIELD_EPOCH},
        {{.kind = EPD_OP_RELEASE, .epoch = 0}, EPD_EORDER, EPD_FIELD_EPOCH},
        {{.kind = EPD_OP_DISPATCH, .group_generation = 77}, EPD_EGENERATION, EPD_FIELD_GENERATION},
    };
    for (size_t i = 0; i < EPD_ARRAY_LEN(cases); i++) {
        struct epd_completion c;
        submit(w, 0, cases[i].e);
        run(w);
        assert_true(poll_one(w, 0, &c));
        if (c.status != cases[i].status || c.field != cases[i].field)
            fail_msg("case %zu: status %d field %u", i, c.status, c.field);
        assert_int_equal(c.flags & EPD_COMPLETION_EPOCH_CONSUMED, 0);
    }
    dispatch_all(w, 0, 0);
    expect_all(w, EPD_OK);
    world_free(w);
}

static void test_notify_and_indirect(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    for (uint32_t r = 0; r < R; r++) {
        const uint32_t b = tokens_of(r);
        memcpy((char *)w->mem[r]->control + 4, &b, 4);
        w->mem[r]->control[2] = 0;
        submit(w, r,
               (struct epd_entry){.kind = EPD_OP_DISPATCH,
                                  .tag = 5,
                                  .flags = EPD_ENTRY_NOTIFY | EPD_ENTRY_B_INDIRECT,
                                  .b_offset = 4,
                                  .notify_offset = 16});
    }
    expect_all(w, EPD_OK);
    check_expert_rows(w, 0);
    for (uint32_t r = 0; r < R; r++)
        assert_int_equal(w->mem[r]->control[2], 1);
    world_free(w);
}

static void test_skipped_combine(void **state)
{
    (void)state;
    struct world *w = world_new(EPD_LAYOUT_EXPERT_MAJOR);
    fill(w);
    dispatch_all(w, 0, 0);
    expect_all(w, EPD_OK);
    for (uint32_t r = 0; r < R; r++) /* rank 2 goes on without the combine */
        submit(w, r,
               (struct epd_entry){.kind = r == 2 ? EPD_OP_DISPATCH : EPD_OP_COMBINE,
                                  .epoch = r == 2,
                                  .set = r == 2,
                                  .b = tokens_of(r)});
    run(w);
    assert_true(g_reports > 0);
    assert_int_equal(g_report.status, EPD_EMISMATCH);
    assert_true(g_report.rank == 2 || g_report.other_rank == 2);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_rank_major),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_third_dispatch),
        cmocka_unit_test(test_waits_asleep),
        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_bad_entries),
        cmocka_unit_test(test_notify_and_indirect),
        cmocka_unit_test(test_skipped_combine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
