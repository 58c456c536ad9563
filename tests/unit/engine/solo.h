/* One engine with both ranks of a group, driven step by step, so that a test decides when a task
 * runs. The control channel and the bells are stubbed here: include this once in a program. */
#ifndef EPD_TESTS_UNIT_ENGINE_SOLO_H
#define EPD_TESTS_UNIT_ENGINE_SOLO_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/engine/group_internal.h"

#define R 2u
#define E 4u
#define L 2u
#define K 2u
#define B 640u /* ten slices */
#define H 8u
#define ROWS ((size_t)L * R * B)
#define GROUP 7u
#define DEPTH 16u
#define ALL ((1u << R) - 1)

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

struct mem { /* of one rank */
    float x[B][H];
    int32_t ids[B][K];
    float weights[B][K];
    float recv[2][ROWS][H];
    int32_t counts[2][L];
    int32_t ranges[2][L][R][2];
    float out[B][H];
    uint64_t control[8];
};

static struct solo {
    struct epd_engine engine;
    struct epd_group *group;
    struct mem *mem[R];
    uint8_t *ring[R];
    uint64_t submitted[R], consumed[R];
    uint32_t generation;
} g;

#define REF(rank, member)                                                                          \
    (struct epd_array_ref)                                                                         \
    {                                                                                              \
        .chunk = 100 + (rank), .offset = offsetof(struct mem, member),                             \
        .bytes = sizeof(((struct mem *)0)->member), .stride = sizeof(((struct mem *)0)->member[0]) \
    }

static inline struct epd_msg_desc dispatch_desc(uint32_t rank)
{
    struct epd_msg_desc d = {
        .group = GROUP,
        .rank = rank,
        .desc_index = 0,
        .desc_generation = 1,
        .kind = EPD_OP_DISPATCH,
        .ids_type = EPD_IDS_INT32,
        .sets = 2,
        .array = {[EPD_ARRAY_X] = REF(rank, x),
                  [EPD_ARRAY_IDS] = REF(rank, ids),
                  [EPD_ARRAY_RECV] = REF(rank, recv),
                  [EPD_ARRAY_COUNTS] = REF(rank, counts),
                  [EPD_ARRAY_RANGES] = REF(rank, ranges),
                  [EPD_ARRAY_CONTROL] = REF(rank, control)},
    };
    d.array[EPD_ARRAY_RECV].stride = H * sizeof(float);
    return d;
}
static inline struct epd_msg_desc combine_desc(uint32_t rank)
{
    struct epd_msg_desc d = {
        .group = GROUP,
        .rank = rank,
        .desc_index = 1,
        .desc_generation = 1,
        .kind = EPD_OP_COMBINE,
        .sets = 2,
        .array = {[EPD_ARRAY_ROWS] = REF(rank, recv),
                  [EPD_ARRAY_WEIGHTS] = REF(rank, weights),
                  [EPD_ARRAY_OUT] = REF(rank, out)},
    };
    d.array[EPD_ARRAY_ROWS].stride = H * sizeof(float);
    return d;
}

static inline uint8_t *chunk_add(uint64_t id, uint64_t bytes, uint32_t kind)
{
    const struct epd_msg_chunk msg = {
        .chunk = id, .bytes = (bytes + 4095) & ~(uint64_t)4095, .kind = kind};
    int fd = -1;
    assert_int_equal(epd_chunks_add_new(g.engine.chunks, &msg, &fd, NULL), EPD_OK);
    (void)close(fd);
    return epd_chunks_find(g.engine.chunks, id)->base;
}

static inline void lease(uint32_t rank)
{
    struct epd_error err = {.status = EPD_OK};
    const struct epd_msg_seat seat = {
        .group = GROUP, .rank = rank, .depth = DEPTH, .chunk = 200 + rank};
    const struct epd_msg_desc d = dispatch_desc(rank), c = combine_desc(rank);
    g.ring[rank] = chunk_add(200 + rank, epd_ring_bytes(DEPTH), EPD_CHUNK_RINGS);
    g.mem[rank] = (void *)chunk_add(100 + rank, sizeof(struct mem), EPD_CHUNK_BUFFERS);
    if (epd_groups_seat_set(&g.engine, &seat, &err) != EPD_OK ||
        epd_groups_desc_set(&g.engine, &d, &err) != EPD_OK ||
        epd_groups_desc_set(&g.engine, &c, &err) != EPD_OK)
        fail_msg("%s", err.message);
}

/* Every token of rank r goes to its own rank's experts 2r and 2r + 1, until a test says otherwise.
 */
static inline int solo_begin(void **state)
{
    (void)state;
    memset(&g, 0, sizeof(g));
    g_reports = 0;
    g_replied = 0;
    g.generation = 1;
    g.engine.transport = &epd_transport_host;
    assert_int_equal(epd_chunks_create(&epd_transport_host, &g.engine.chunks, NULL), EPD_OK);
    assert_int_equal(epd_workers_create(1, &g.engine.workers, NULL), EPD_OK);
    const struct epd_msg_group msg = {
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
                  .layout = EPD_LAYOUT_EXPERT_MAJOR},
        .timeout_ms = 60000,
        .first_timeout_ms = 60000,
        .present = ALL,
        .exchange = {1},
    };
    (void)chunk_add(1, epd_exchange_bytes(&msg.shape), EPD_CHUNK_EXCHANGE);
    assert_int_equal(epd_groups_set(&g.engine, &msg, NULL), EPD_OK);
    g.group = g.engine.groups;
    for (uint32_t r = 0; r < R; r++) {
        lease(r);
        for (uint32_t t = 0; t < B; t++) {
            for (uint32_t h = 0; h < H; h++)
                g.mem[r]->x[t][h] = (float)(1000 * r + t + 1);
            for (uint32_t k = 0; k < K; k++) {
                g.mem[r]->ids[t][k] = (int32_t)(2 * r + k);
                g.mem[r]->weights[t][k] = (float)(k + 1 + t % 7);
            }
        }
    }
    return 0;
}
static inline int solo_end(void **state)
{
    (void)state;
    epd_groups_poison(&g.engine, EPD_EDAEMONLOST);
    epd_workers_destroy(g.engine.workers);
    epd_chunks_destroy(g.engine.chunks);
    return 0;
}

/* The scheduler alone: no task runs. */
static inline void step(void)
{
    for (unsigned i = 0; i < 8; i++) {
        g.engine.now_ns = epd_now_ns();
        (void)epd_groups_step(&g.engine);
    }
}
/* The tasks that are there now. */
static inline void work(void)
{
    while (epd_workers_run_one(g.engine.workers))
        ;
}
static inline void run(void)
{
    for (unsigned i = 0; i < 8; i++) {
        step();
        work();
    }
    step();
}

static inline void submit(uint32_t rank, struct epd_entry e)
{
    const uint64_t ticket = g.submitted[rank]++;
    struct epd_entry *slot = epd_ring_entry(g.ring[rank], DEPTH, ticket);
    e.abi = EPD_ABI_VERSION;
    e.group_generation = g.generation;
    e.desc_index = e.desc_index ? e.desc_index : e.kind == EPD_OP_COMBINE;
    e.desc_generation = e.desc_generation ? e.desc_generation : 1;
    e.seq = 0;
    *slot = e;
    __atomic_store_n(&slot->seq, ticket + 1, __ATOMIC_SEQ_CST);
}
static inline void dispatch(uint32_t rank, uint64_t epoch, uint32_t b)
{
    submit(rank,
           (struct epd_entry){.kind = EPD_OP_DISPATCH, .epoch = epoch, .set = epoch % 2, .b = b});
}
static inline void combine(uint32_t rank, uint64_t epoch)
{
    submit(rank, (struct epd_entry){.kind = EPD_OP_COMBINE, .epoch = epoch, .set = epoch % 2});
}
/* The next completion, NULL: not there. */
static inline const struct epd_completion *next(uint32_t rank)
{
    const struct epd_completion *c = epd_ring_completion(g.ring[rank], DEPTH, g.consumed[rank]);
    if (__atomic_load_n(&c->seq, __ATOMIC_ACQUIRE) != g.consumed[rank] + 1)
        return NULL;
    g.consumed[rank]++;
    return c;
}
static inline const struct epd_completion *expect(uint32_t rank, int status)
{
    const struct epd_completion *c = next(rank);
    if (c == NULL)
        fail_msg("rank %u: no completion", rank);
    else if (c->status != status)
        fail_msg("rank %u: status %d field %u, not %d", rank, c->status, c->field, status);
    return c;
}
static inline void expect_none(uint32_t rank)
{
    const struct epd_completion *c = next(rank);
    if (c != NULL)
        fail_msg("rank %u: kind %u epoch %llu completed with %d", rank, c->kind,
                 (unsigned long long)c->epoch, c->status);
}

static inline struct epd_msg_epoch epoch_message(uint64_t epoch, uint32_t generation, int status)
{
    return (struct epd_msg_epoch){.h.seq = 9,
                                  .group = GROUP,
                                  .epoch = epoch,
                                  .generation = generation,
                                  .status = status,
                                  .rank = 1,
                                  .other_rank = -1,
                                  .present = ALL};
}

#endif
