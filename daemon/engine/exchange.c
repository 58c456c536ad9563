#include "daemon/engine/group_internal.h"

#include <string.h>

/* Records are written word by word with relaxed stores between two stores of the key (0, then the
 * new key with release), and read the same way backwards (acquire, payload, key again), so that a
 * reader that is an epoch behind never mixes two records. */

static void store_record(void *to, const void *from, size_t bytes, uint64_t key)
{
    uint64_t *dst = to;
    const size_t last = bytes / sizeof(uint64_t) - 1;
    uint64_t words[16];
    memcpy(words, from, bytes);
    __atomic_store_n(&dst[last], 0, __ATOMIC_RELAXED);
    for (size_t i = 0; i < last; i++) /* release: not before the key became 0 */
        __atomic_store_n(&dst[i], words[i], __ATOMIC_RELEASE);
    __atomic_store_n(&dst[last], key, __ATOMIC_RELEASE);
}

static bool load_record(void *to, const void *from, size_t bytes, uint32_t generation,
                        uint64_t epoch)
{
    const uint64_t *src = from;
    const size_t last = bytes / sizeof(uint64_t) - 1;
    uint64_t words[16];
    words[last] = __atomic_load_n(&src[last], __ATOMIC_ACQUIRE);
    if (!epd_word_is(words[last], generation, epoch))
        return false;
    for (size_t i = 0; i < last; i++)
        words[i] = __atomic_load_n(&src[i], __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&src[last], __ATOMIC_RELAXED) != words[last])
        return false;
    memcpy(to, words, bytes);
    return true;
}

/* Addresses in the exchange chunk of `device`. */
static uint8_t *header_at(const struct epd_group *g, uint32_t device, uint64_t area, uint64_t epoch,
                          uint32_t rank)
{
    uint64_t i = epd_exchange_slot(epoch) * g->shape.ranks + rank;
    return g->exchange[device] + area + i * sizeof(struct epd_xheader);
}
static uint8_t *credit_at(const struct epd_group *g, uint32_t device, uint64_t epoch, uint32_t rank)
{
    uint64_t i = epd_exchange_slot(epoch) * g->shape.ranks + rank;
    return g->exchange[device] + g->map.credit + i * sizeof(struct epd_xcredit);
}
static uint64_t *counts_at(const struct epd_group *g, uint32_t device, uint64_t epoch, uint32_t src)
{
    uint64_t i = (epd_exchange_slot(epoch) * g->shape.ranks + src) * g->buckets;
    return (uint64_t *)(void *)(g->exchange[device] + g->map.counts) + i;
}
static uint64_t *pair_at(const struct epd_group *g, uint32_t device, uint64_t area, uint64_t epoch,
                         uint32_t dst, uint32_t src)
{
    const uint64_t r = g->shape.ranks;
    uint64_t i = (epd_exchange_slot(epoch) * r + dst) * r + src;
    return (uint64_t *)(void *)(g->exchange[device] + area) + i;
}

#define FOR_DEVICES(d, g)                                                                          \
    for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++)                                                 \
        if (((g)->devices >> d & 1u) != 0)

void epd_exchange_publish_dispatch(struct epd_op *op)
{
    const struct epd_seat *seat = op->seat;
    const struct epd_group *g = seat->group;
    const uint64_t epoch = op->entry.epoch;
    const uint64_t base = epd_word_pack(g->generation, epoch, 0);
    const struct epd_xheader header = {
        .tag_hash = (uint64_t)op->entry.tag << 32 | g->shape_hash[0],
        .order = op->order,
    };
    FOR_DEVICES(d, g)
    {
        uint64_t *counts = counts_at(g, d, epoch, seat->rank);
        for (uint32_t c = 0; c < g->buckets; c++)
            __atomic_store_n(&counts[c], base | op->turn->count[c], __ATOMIC_RELEASE);
        store_record(header_at(g, d, g->map.dispatch, epoch, seat->rank), &header, sizeof(header),
                     base | op->b);
        epd_engine_publish_to(g->engine, d);
    }
}

static void credit_array(struct epd_xarray *out, const struct epd_array_map *array, uint64_t begin)
{
    if (array->base != NULL)
        *out = (struct epd_xarray){.chunk = array->chunk, .offset = array->offset + begin};
}

void epd_exchange_publish_credit(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_array_map *a = op->desc->array;
    const uint64_t set = op->entry.set, rows = epd_recv_rows(&g->shape);
    const uint64_t selections = rows * g->shape.topk * 4u;
    struct epd_xcredit credit = {.stride = a[EPD_ARRAY_RECV].stride, .rows = rows};
    credit_array(&credit.recv, &a[EPD_ARRAY_RECV], set * rows * a[EPD_ARRAY_RECV].stride);
    credit_array(&credit.src, &a[EPD_ARRAY_SRC], set * rows * 4u);
    credit_array(&credit.ids, &a[EPD_ARRAY_RECV_IDS], set * selections);
    credit_array(&credit.weights, &a[EPD_ARRAY_RECV_WEIGHTS], set * selections);
    FOR_DEVICES(d, g)
    {
        store_record(credit_at(g, d, op->entry.epoch, op->seat->rank), &credit, sizeof(credit),
                     epd_word_pack(g->generation, op->entry.epoch, 0));
        epd_engine_publish_to(g->engine, d);
    }
}

static void publish_pairs(struct epd_op *op, uint64_t area, uint64_t ranks)
{
    const struct epd_group *g = op->seat->group;
    const uint64_t word = epd_word_pack(g->generation, op->entry.epoch, 0);
    EPD_FOR_RANKS(dst, ranks)
    {
        const uint32_t d = g->device[dst];
        __atomic_store_n(pair_at(g, d, area, op->entry.epoch, dst, op->seat->rank), word,
                         __ATOMIC_RELEASE);
        epd_engine_publish_to(g->engine, d);
    }
}

void epd_exchange_publish_done(struct epd_op *op, uint64_t ranks)
{
    publish_pairs(op, op->seat->group->map.done, ranks);
}

void epd_exchange_publish_released(struct epd_op *op, uint64_t ranks)
{
    publish_pairs(op, op->seat->group->map.released, ranks);
}

void epd_exchange_publish_combine(struct epd_op *op)
{
    const struct epd_seat *seat = op->seat;
    const struct epd_group *g = seat->group;
    const struct epd_array_map *rows = &op->desc->array[EPD_ARRAY_ROWS];
    const struct epd_xheader header = {
        .tag_hash = (uint64_t)op->entry.tag << 32 | g->shape_hash[1],
        .order = op->order,
        .chunk = rows->chunk,
        .offset = rows->offset + op->entry.set * epd_recv_rows(&g->shape) * rows->stride,
        .stride = rows->stride,
    };
    FOR_DEVICES(d, g)
    {
        store_record(header_at(g, d, g->map.combine, op->entry.epoch, seat->rank), &header,
                     sizeof(header), epd_word_pack(g->generation, op->entry.epoch, 0));
        epd_engine_publish_to(g->engine, d);
    }
}

struct epd_epoch *epd_exchange_epoch(struct epd_group *group, uint64_t epoch)
{
    struct epd_epoch *e = &group->epoch[epd_exchange_slot(epoch)];
    if (!e->used || e->epoch != epoch) {
        e->used = true;
        e->epoch = epoch;
        e->headers = e->credits = e->combines = 0;
    }
    return e;
}

static bool read_counts(struct epd_group *g, struct epd_epoch *e, uint32_t src)
{
    const uint64_t *words = counts_at(g, g->engine->device, e->epoch, src);
    uint32_t *counts = e->counts + (size_t)src * g->buckets;
    for (uint32_t c = 0; c < g->buckets; c++) {
        uint64_t word = __atomic_load_n(&words[c], __ATOMIC_ACQUIRE);
        if (!epd_word_is(word, g->generation, e->epoch))
            return false;
        counts[c] = epd_word_count(word);
        if (counts[c] > g->shape.max_tokens) /* a peer engine's bug must not become an overflow */
            counts[c] = g->shape.max_tokens;
    }
    return true;
}

bool epd_exchange_poll(struct epd_group *g, struct epd_epoch *e)
{
    const uint32_t d = g->engine->device;
    bool moved = false;
    EPD_FOR_RANKS(r, g->present & ~e->headers)
    {
        if (load_record(&e->dispatch[r], header_at(g, d, g->map.dispatch, e->epoch, r),
                        sizeof(e->dispatch[r]), g->generation, e->epoch) &&
            read_counts(g, e, r)) {
            e->headers |= epd_rank_bit(r);
            moved = true;
        }
    }
    EPD_FOR_RANKS(r, g->present & ~e->credits)
    {
        if (load_record(&e->credit[r], credit_at(g, d, e->epoch, r), sizeof(e->credit[r]),
                        g->generation, e->epoch)) {
            e->credits |= epd_rank_bit(r);
            moved = true;
        }
    }
    EPD_FOR_RANKS(r, g->present & ~e->combines)
    {
        if (load_record(&e->combine[r], header_at(g, d, g->map.combine, e->epoch, r),
                        sizeof(e->combine[r]), g->generation, e->epoch)) {
            e->combines |= epd_rank_bit(r);
            moved = true;
        }
    }
    return moved;
}

static uint64_t read_pairs(const struct epd_seat *seat, uint64_t area, uint64_t epoch,
                           uint64_t ranks)
{
    const struct epd_group *g = seat->group;
    uint64_t in = 0;
    EPD_FOR_RANKS(src, ranks)
    {
        const uint64_t *word = pair_at(g, g->engine->device, area, epoch, seat->rank, src);
        if (epd_word_is(__atomic_load_n(word, __ATOMIC_ACQUIRE), g->generation, epoch))
            in |= epd_rank_bit(src);
    }
    return in;
}

uint64_t epd_exchange_done(const struct epd_seat *seat, uint64_t epoch, uint64_t ranks)
{
    return read_pairs(seat, seat->group->map.done, epoch, ranks);
}

uint64_t epd_exchange_released(const struct epd_seat *seat, uint64_t epoch, uint64_t ranks)
{
    return read_pairs(seat, seat->group->map.released, epoch, ranks);
}

static int tag_conflict(const struct epd_xheader *headers, uint64_t in, uint32_t me)
{
    EPD_FOR_RANKS(r, in)
    {
        if (r != me && headers[r].tag_hash != headers[me].tag_hash)
            return (int)r;
    }
    return -1;
}

/* Ranks that went the other way round: in `probe` (their header of another op), with order telling
 * that they had not submitted this op's epoch. */
static int order_conflict(struct epd_group *g, uint64_t area, uint64_t epoch, uint64_t limit,
                          uint32_t me)
{
    EPD_FOR_RANKS(r, g->present & ~epd_rank_bit(me))
    {
        struct epd_xheader h;
        if (load_record(&h, header_at(g, g->engine->device, area, epoch, r), sizeof(h),
                        g->generation, epoch) &&
            h.order <= limit)
            return (int)r;
    }
    return -1;
}

int epd_exchange_conflict(const struct epd_op *op)
{
    struct epd_group *g = op->seat->group;
    const struct epd_epoch *e = epd_exchange_epoch(g, op->entry.epoch);
    const uint32_t me = op->seat->rank;
    const uint64_t own = epd_rank_bit(me);
    if (op->entry.kind == EPD_OP_DISPATCH)
        return (e->headers & own) != 0 ? tag_conflict(e->dispatch, e->headers, me) : -1;
    if ((e->combines & own) == 0)
        return -1;
    int with = tag_conflict(e->combine, e->combines, me);
    /* This combine was submitted before this seat's dispatch `order`; a rank that has published
     * that dispatch (or the next) without this combine runs another sequence. */
    for (uint64_t m = e->combine[me].order; with < 0 && m < e->combine[me].order + 2; m++)
        with = order_conflict(g, g->map.dispatch, m, op->entry.epoch, me);
    return with;
}
