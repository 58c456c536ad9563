#include "daemon/engine/group_internal.h"

#include <string.h>

/* The ids are client memory: each is loaded exactly once, validated, and only the private copy is
 * used from then on. */
static int64_t load_id(const uint8_t *row, uint32_t k, uint32_t ids_type)
{
    if (ids_type == EPD_IDS_INT64)
        return __atomic_load_n((const int64_t *)(const void *)row + k, __ATOMIC_RELAXED);
    return __atomic_load_n((const int32_t *)(const void *)row + k, __ATOMIC_RELAXED);
}

static bool read_ids(struct epd_op *op)
{
    const struct epd_group *g = op->seat->group;
    const struct epd_array_map *a = &op->desc->array[EPD_ARRAY_IDS];
    const uint32_t topk = g->shape.topk;
    for (uint32_t t = 0; t < op->b; t++) {
        const uint8_t *row = a->base + (op->entry.in_row + t) * a->stride;
        int32_t *ids = op->turn->ids + (size_t)t * topk;
        for (uint32_t k = 0; k < topk; k++) {
            int64_t id = load_id(row, k, op->desc->ids_type);
            if (id < -1 || id >= (int64_t)g->shape.experts) {
                op->cause = (struct epd_cause){
                    .status = EPD_EROUTING,
                    .rank = (int16_t)op->seat->rank,
                    .other_rank = -1,
                    .phase = EPD_PHASE_VALIDATE,
                    .field = EPD_FIELD_IDS,
                    .value = (uint64_t)(t * topk + k) << 32 | (uint32_t)id,
                };
                return false;
            }
            if (id >= 0 && (g->present >> epd_expert_rank(&g->shape, (uint32_t)id) & 1u) == 0)
                id = -1; /* an absent rank's expert behaves as -1 */
            ids[k] = (int32_t)id;
        }
    }
    return true;
}

/* One term per valid selection, k ascending; duplicates share the row of the first. */
static uint8_t terms_expert_major(struct epd_turn *turn, const int32_t *ids, uint32_t topk,
                                  struct epd_term *terms)
{
    uint8_t n = 0;
    for (uint32_t k = 0; k < topk; k++) {
        if (ids[k] < 0)
            continue;
        struct epd_term term = {.bucket = (uint16_t)ids[k], .k = (uint8_t)k, .write = 1};
        for (uint8_t i = 0; i < n; i++) {
            if (terms[i].bucket == term.bucket) {
                term.index = terms[i].index;
                term.write = 0;
                break;
            }
        }
        if (term.write)
            term.index = turn->count[term.bucket]++;
        terms[n++] = term;
    }
    return n;
}

/* One term per rank that the token reaches, ranks ascending. */
static uint8_t terms_rank_major(const struct epd_group *g, struct epd_turn *turn,
                                const int32_t *ids, struct epd_term *terms)
{
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < g->shape.topk; k++)
        if (ids[k] >= 0)
            ranks |= epd_rank_bit(g->expert_rank[ids[k]]);
    uint8_t n = 0;
    EPD_FOR_RANKS(r, ranks)
    terms[n++] = (struct epd_term){
        .bucket = (uint16_t)r,
        .write = 1,
        .index = turn->count[r]++,
    };
    return n;
}

void epd_route_run(void *arg, uint32_t index)
{
    (void)index;
    struct epd_op *op = arg;
    struct epd_turn *turn = op->turn;
    const struct epd_group *g = op->seat->group;
    const uint32_t topk = g->shape.topk;
    const bool expert_major = g->shape.layout == EPD_LAYOUT_EXPERT_MAJOR;
    memset(turn->count, 0, g->buckets * sizeof(*turn->count));
    turn->need = 0;
    if (!read_ids(op))
        return;
    for (uint32_t t = 0; t < op->b; t++) {
        const int32_t *ids = turn->ids + (size_t)t * topk;
        struct epd_term *terms = turn->terms + (size_t)t * topk;
        turn->n_terms[t] = expert_major ? terms_expert_major(turn, ids, topk, terms)
                                        : terms_rank_major(g, turn, ids, terms);
        for (uint8_t i = 0; i < turn->n_terms[t]; i++)
            turn->need |=
                epd_rank_bit(expert_major ? g->expert_rank[terms[i].bucket] : terms[i].bucket);
    }
}
