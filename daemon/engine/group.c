#define EPD_LOG_COMPONENT "group"
#include "daemon/engine/group_internal.h"
#include "daemon/engine/ring.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"

/* ---- objects ---- */

static struct epd_group *find_group(const struct epd_engine *engine, uint64_t id)
{
    struct epd_group *g = engine->groups;
    while (g != NULL && g->id != id)
        g = g->link;
    return g;
}

static enum epd_status need_group(const struct epd_engine *engine, uint64_t id,
                                  struct epd_group **out, struct epd_error *err)
{
    *out = find_group(engine, id);
    if (*out == NULL)
        return epd_fail(err, EPD_ENOENT, "group %llu is not known to this engine",
                        (unsigned long long)id);
    return EPD_OK;
}

static void seat_free(struct epd_seat *seat)
{
    if (seat == NULL)
        return;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        free(seat->turn[i].ids);
        free(seat->turn[i].terms);
        free(seat->turn[i].n_terms);
        free(seat->turn[i].count);
        free(seat->turn[i].base);
    }
    free(seat);
}

static struct epd_seat *seat_new(struct epd_group *g, uint32_t rank)
{
    struct epd_seat *seat = calloc(1, sizeof(*seat));
    if (seat == NULL)
        return NULL;
    seat->group = g;
    seat->rank = rank;
    const size_t selections = (size_t)g->shape.max_tokens * g->shape.topk;
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        struct epd_turn *turn = &seat->turn[i];
        turn->ids = calloc(selections, sizeof(*turn->ids));
        turn->terms = calloc(selections, sizeof(*turn->terms));
        turn->n_terms = calloc(g->shape.max_tokens, sizeof(*turn->n_terms));
        turn->count = calloc(g->buckets, sizeof(*turn->count));
        turn->base = calloc(g->buckets, sizeof(*turn->base));
        if (!turn->ids || !turn->terms || !turn->n_terms || !turn->count || !turn->base) {
            seat_free(seat);
            return NULL;
        }
    }
    return seat;
}

static void group_free(struct epd_group *g)
{
    if (g == NULL)
        return;
    for (uint32_t r = 0; r < EPD_MAX_RANKS; r++)
        seat_free(g->seat[r]);
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        free(g->epoch[i].counts);
    free(g);
}

static enum epd_status map_exchange(struct epd_group *g, const struct epd_msg_group *msg,
                                    struct epd_error *err)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        const uint32_t d = msg->device[r];
        if (d >= EPD_MAX_DEVICES)
            return epd_fail(err, EPD_EINVAL, "device[%u] is %u, above %u", r, d,
                            EPD_MAX_DEVICES - 1);
        const struct epd_chunk *chunk = epd_chunks_find(g->engine->chunks, msg->exchange[d]);
        if (chunk == NULL || chunk->kind != EPD_CHUNK_EXCHANGE || chunk->bytes < g->map.bytes)
            return epd_fail(err, EPD_EINVAL, "exchange[%u] chunk %llu is missing or too small", d,
                            (unsigned long long)msg->exchange[d]);
        g->device[r] = (uint8_t)d;
        g->devices |= 1u << d;
        g->exchange_chunk[d] = chunk->id;
        g->exchange[d] = chunk->base;
    }
    return EPD_OK;
}

static enum epd_status group_init(struct epd_group *g, const struct epd_msg_group *msg,
                                  struct epd_error *err)
{
    g->id = msg->group;
    g->generation = msg->generation;
    g->armed = msg->armed != 0;
    g->shape = msg->shape;
    g->shape_hash[0] = epd_shape_hash(&g->shape, EPD_OP_DISPATCH);
    g->shape_hash[1] = epd_shape_hash(&g->shape, EPD_OP_COMBINE);
    g->row_bytes = epd_row_bytes(&g->shape);
    g->buckets = epd_exchange_counts(&g->shape);
    g->timeout_ns = msg->timeout_ms * 1000000ull;
    g->first_timeout_ns = msg->first_timeout_ms * 1000000ull;
    g->present = msg->present;
    g->map = epd_exchange_layout(&g->shape);
    for (uint32_t e = 0; e < g->shape.experts; e++)
        g->expert_rank[e] = (uint8_t)epd_expert_rank(&g->shape, e);
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++) {
        g->epoch[i].counts =
            calloc((size_t)g->shape.ranks * g->buckets, sizeof(*g->epoch[i].counts));
        if (g->epoch[i].counts == NULL)
            return epd_fail(err, EPD_ENOMEM, "no memory for the counts of group %llu",
                            (unsigned long long)g->id);
    }
    return map_exchange(g, msg, err);
}

enum epd_status epd_groups_set(struct epd_engine *engine, const struct epd_msg_group *msg,
                               struct epd_error *err)
{
    const char *problem = epd_shape_problem(&msg->shape);
    if (problem != NULL)
        return epd_fail(err, EPD_EINVAL, "shape: %s", problem);
    if (find_group(engine, msg->group) != NULL)
        return epd_fail(err, EPD_EEXIST, "group %llu exists", (unsigned long long)msg->group);
    struct epd_group *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a group");
    g->engine = engine;
    enum epd_status status = group_init(g, msg, err);
    if (status != EPD_OK) {
        group_free(g);
        return status;
    }
    g->link = engine->groups;
    engine->groups = g;
    return EPD_OK;
}

/* Finish what runs; nothing new starts because the caller owns the only thread that starts. */
static void drain_batches(struct epd_group *g)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        for (unsigned i = 0; g->seat[r] != NULL && i < EPD_OP_WINDOW; i++) {
            struct epd_op *op = &g->seat[r]->op[i];
            if (!op->running)
                continue;
            epd_batch_revoke(&op->batch);
            while (!epd_batch_done(&op->batch))
                if (!epd_workers_run_one(g->engine->workers))
                    sched_yield();
            op->running = false;
        }
    }
}

enum epd_status epd_groups_drop(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_group(engine, msg->group, &g, err);
    if (status != EPD_OK)
        return status;
    struct epd_group **at = &engine->groups;
    while (*at != g)
        at = &(*at)->link;
    *at = g->link;
    drain_batches(g);
    group_free(g);
    return EPD_OK;
}

static enum epd_status need_seat(const struct epd_engine *engine, uint64_t id, uint32_t rank,
                                 struct epd_seat **out, struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_group(engine, id, &g, err);
    if (status != EPD_OK)
        return status;
    if (rank >= g->shape.ranks || g->seat[rank] == NULL || !g->seat[rank]->leased)
        return epd_fail(err, EPD_ENOENT, "seat %u of group %llu is not set on this engine", rank,
                        (unsigned long long)id);
    *out = g->seat[rank];
    return EPD_OK;
}

static enum epd_status check_seat(const struct epd_group *g, const struct epd_msg_seat *msg,
                                  struct epd_error *err)
{
    if (msg->rank >= g->shape.ranks || g->device[msg->rank] != g->engine->device)
        return epd_fail(err, EPD_EINVAL, "rank %u has no seat on device %u", msg->rank,
                        g->engine->device);
    if (g->seat[msg->rank] != NULL && g->seat[msg->rank]->leased)
        return epd_fail(err, EPD_EBUSY, "seat %u is set already", msg->rank);
    if (msg->depth < EPD_RING_DEPTH_MIN || msg->depth > EPD_RING_DEPTH_MAX ||
        (msg->depth & (msg->depth - 1)) != 0)
        return epd_fail(err, EPD_EINVAL, "depth %u is not a power of two in 4..4096", msg->depth);
    const struct epd_chunk *chunk = epd_chunks_find(g->engine->chunks, msg->chunk);
    if (chunk == NULL || chunk->kind != EPD_CHUNK_RINGS || msg->offset % 4096 != 0 ||
        msg->offset > chunk->bytes || epd_ring_bytes(msg->depth) > chunk->bytes - msg->offset)
        return epd_fail(err, EPD_EINVAL, "ring area does not fit chunk %llu",
                        (unsigned long long)msg->chunk);
    return EPD_OK;
}

enum epd_status epd_groups_seat_set(struct epd_engine *engine, const struct epd_msg_seat *msg,
                                    struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_group(engine, msg->group, &g, err);
    if (status == EPD_OK)
        status = check_seat(g, msg, err);
    if (status != EPD_OK)
        return status;
    struct epd_seat *seat = seat_new(g, msg->rank);
    if (seat == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for seat %u", msg->rank);
    seat_free(g->seat[msg->rank]);
    g->seat[msg->rank] = seat;
    seat->chunk = msg->chunk;
    seat->ring = epd_chunks_find(engine->chunks, msg->chunk)->base + msg->offset;
    seat->depth = msg->depth;
    seat->leased = true;
    epd_ring_attach(seat, msg->replay != 0);
    return EPD_OK;
}

enum epd_status epd_groups_seat_clear(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                      struct epd_error *err)
{
    struct epd_seat *seat = NULL;
    enum epd_status status = need_seat(engine, msg->group, (uint32_t)msg->rank, &seat, err);
    if (status != EPD_OK)
        return status;
    struct epd_group *g = seat->group;
    drain_batches(g);
    g->seat[seat->rank] = NULL;
    seat_free(seat);
    return EPD_OK;
}

bool epd_groups_use_chunk(const struct epd_engine *engine, uint64_t chunk)
{
    for (const struct epd_group *g = engine->groups; g != NULL; g = g->link) {
        for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++)
            if (g->exchange_chunk[d] == chunk)
                return true;
        for (uint32_t r = 0; r < g->shape.ranks; r++) {
            const struct epd_seat *seat = g->seat[r];
            if (seat != NULL && (seat->chunk == chunk || epd_seat_uses_chunk(seat, chunk)))
                return true;
        }
    }
    return false;
}

void epd_groups_totals(const struct epd_engine *engine, uint32_t *groups, uint32_t *seats)
{
    *groups = *seats = 0;
    for (const struct epd_group *g = engine->groups; g != NULL; g = g->link) {
        (*groups)++;
        for (uint32_t r = 0; r < g->shape.ranks; r++)
            *seats += g->seat[r] != NULL;
    }
}

enum epd_status epd_groups_stats(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                 struct epd_msg_group_stats *out, struct epd_error *err)
{
    struct epd_group *g = NULL;
    enum epd_status status = need_group(engine, msg->group, &g, err);
    for (uint32_t r = 0; status == EPD_OK && r < g->shape.ranks; r++) {
        const struct epd_seat *seat = g->seat[r];
        if (seat == NULL)
            continue;
        out->seat[r].ops = seat->ops;
        out->seat[r].wait_us = seat->wait_us;
        out->seat[r].work_us = seat->work_us;
        out->seat[r].rows = seat->rows;
    }
    return status;
}

void epd_groups_poison(struct epd_engine *engine, enum epd_status status)
{
    const struct epd_cause cause = {.status = status, .rank = -1, .other_rank = -1};
    while (engine->groups != NULL) {
        struct epd_group *g = engine->groups;
        drain_batches(g);
        for (uint32_t r = 0; r < g->shape.ranks; r++)
            if (g->seat[r] != NULL)
                epd_seat_abort(g->seat[r], &cause);
        engine->groups = g->link;
        group_free(g);
    }
}
