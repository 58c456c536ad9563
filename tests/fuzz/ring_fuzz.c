/* A hostile client owns rank 1's ring and buffers: the input is what it writes there, step by step,
 * while rank 0 submits honest ops. The engine must stay inside its chunks (ASAN), end every entry
 * with one completion, and never abort. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/transport.h"
#include "proto/exchange.h"
#include "proto/ring.h"
#include "proto/version.h"

#define DEPTH 8u
#define BUFFER_BYTES 16384u
#define HOSTILE 1u

void epd_control_reply(struct epd_engine *engine, uint64_t seq, const struct epd_error *err)
{
    (void)engine;
    (void)seq;
    (void)err;
}
static struct epd_msg_epoch g_report;
static int g_reported;
void epd_control_report(struct epd_engine *engine, struct epd_msg_epoch *msg)
{
    (void)engine;
    g_report = *msg;
    g_reported = 1;
}
void epd_engine_publish_to(struct epd_engine *engine, uint32_t device)
{
    (void)engine;
    (void)device;
}

static uint8_t *add_chunk(struct epd_engine *engine, uint64_t id, uint64_t bytes, uint32_t kind)
{
    struct epd_msg_chunk msg = {.chunk = id, .bytes = (bytes + 4095) & ~4095ull, .kind = kind};
    int fd = -1;
    if (epd_chunks_add_new(engine->chunks, &msg, &fd, NULL) != EPD_OK)
        abort();
    close(fd);
    return epd_chunks_find(engine->chunks, id)->base;
}

static void bind_rank(struct epd_engine *engine, uint32_t rank)
{
    const struct epd_array_ref big = {10 + rank, 0, 8192, 16};
    const struct epd_array_ref small = {10 + rank, 8192, 4096, 16};
    struct epd_msg_desc d = {.group = 1,
                             .rank = rank,
                             .desc_generation = 1,
                             .kind = EPD_OP_DISPATCH,
                             .ids_type = EPD_IDS_INT32,
                             .sets = 2};
    for (uint32_t role = 0; role < EPD_ARRAY_ROLES; role++)
        d.array[role] = role == EPD_ARRAY_RECV ? big : small;
    d.array[EPD_ARRAY_RECV_IDS].chunk = d.array[EPD_ARRAY_RECV_WEIGHTS].chunk = 0;
    if (epd_groups_desc_set(engine, &d, NULL) != EPD_OK)
        abort();
    struct epd_msg_desc c = d;
    c.desc_index = 1;
    c.kind = EPD_OP_COMBINE;
    c.array[EPD_ARRAY_ROWS] = big;
    c.array[EPD_ARRAY_OUT] = small;
    if (epd_groups_desc_set(engine, &c, NULL) != EPD_OK)
        abort();
}

static void answer_report(struct epd_engine *engine)
{
    struct epd_msg_epoch m = g_report;
    g_reported = 0;
    m.h.seq = 1;
    if (m.epoch == EPD_EPOCH_ALL)
        return;
    (void)epd_groups_revoke(engine, &m, NULL);
    (void)epd_groups_step(engine);
    (void)epd_groups_fail(engine, &m, NULL);
}

static void run(struct epd_engine *engine)
{
    for (unsigned i = 0; i < 16; i++) {
        engine->now_ns += 1000000;
        (void)epd_groups_step(engine);
        while (epd_workers_run_one(engine->workers)) {
        }
        if (g_reported)
            answer_report(engine);
    }
}

static void put(uint8_t *ring, uint64_t ticket, const struct epd_entry *e)
{
    struct epd_entry *slot = epd_ring_entry(ring, DEPTH, ticket);
    memcpy(slot, e, sizeof(*e));
    __atomic_store_n(&slot->seq, ticket + 1, __ATOMIC_SEQ_CST);
}

static void open_world(struct epd_engine *engine, uint8_t *ring[2], uint8_t *mem[2])
{
    if (epd_chunks_create(&epd_transport_host, &engine->chunks, NULL) != EPD_OK ||
        epd_workers_create(1, &engine->workers, NULL) != EPD_OK)
        abort();
    engine->transport = &epd_transport_host;
    struct epd_msg_group g = {.group = 1,
                              .generation = 1,
                              .armed = 1,
                              .timeout_ms = 8,
                              .first_timeout_ms = 8,
                              .present = 3,
                              .exchange = {1},
                              .shape = {.ranks = 2,
                                        .experts = 4,
                                        .max_tokens = 8,
                                        .topk = 3,
                                        .hidden = 8,
                                        .dtype = EPD_DTYPE_BF16,
                                        .mode = EPD_MODE_LL,
                                        .layout = EPD_LAYOUT_EXPERT_MAJOR}};
    (void)add_chunk(engine, 1, epd_exchange_bytes(&g.shape), EPD_CHUNK_EXCHANGE);
    if (epd_groups_set(engine, &g, NULL) != EPD_OK)
        abort();
    for (uint32_t r = 0; r < 2; r++) {
        mem[r] = add_chunk(engine, 10 + r, BUFFER_BYTES, EPD_CHUNK_BUFFERS);
        ring[r] = add_chunk(engine, 20 + r, epd_ring_bytes(DEPTH), EPD_CHUNK_RINGS);
        struct epd_msg_seat s = {.group = 1, .rank = r, .depth = DEPTH, .chunk = 20 + r};
        if (epd_groups_seat_set(engine, &s, NULL) != EPD_OK)
            abort();
        bind_rank(engine, r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct epd_engine engine = {.now_ns = 1};
    uint8_t *ring[2], *mem[2];
    uint64_t tickets[2] = {0, 0};
    open_world(&engine, ring, mem);
    while (size > 0) {
        const uint8_t what = data[0];
        data++, size--;
        struct epd_entry e = {.abi = EPD_ABI_VERSION,
                              .kind = 1 + (what >> 6) % 2u,
                              .desc_generation = 1,
                              .desc_index = (what >> 6) % 2u,
                              .group_generation = 1,
                              .b = what & 7u,
                              .epoch = tickets[0] / 2};
        if ((what & 3u) == 0) { /* honest rank */
            put(ring[0], tickets[0]++, &e);
        } else if ((what & 3u) == 1) { /* hostile: fields of a plausible entry overwritten */
            const size_t n = size < 64 ? size : 64;
            memcpy((uint8_t *)&e + (what >> 2), data, n < sizeof(e) - (what >> 2) ? n : 0);
            put(ring[HOSTILE], tickets[1]++, &e);
            data += n, size -= n;
        } else if ((what & 3u) == 2) { /* hostile: ids and rows */
            const size_t n = size < 256 ? size : 256;
            memcpy(mem[HOSTILE] + 8192, data, n);
            data += n, size -= n;
        } else { /* hostile: any word of its ring area */
            const size_t n = size < 16 ? size : 16;
            const size_t at = ((size_t)what * 61u) % (epd_ring_bytes(DEPTH) - 16u);
            memcpy(ring[HOSTILE] + at, data, n);
            data += n, size -= n;
        }
        run(&engine);
    }
    epd_groups_poison(&engine, EPD_EDAEMONLOST);
    epd_workers_destroy(engine.workers);
    epd_chunks_destroy(engine.chunks);
    return 0;
}
