#include "daemon/engine/group_internal.h"

#include <string.h>

/* Op descriptors. The supervisor validated the arrays against the shape; what would let the engine
 * write or read outside a chunk is checked here again, because the engine trusts nobody's sums. */

static const char *const g_role_names[EPD_ARRAY_ROLES] = {
    "x",      "ids", "weights",  "recv",         "counts",
    "ranges", "src", "recv_ids", "recv_weights", "control"};

static enum epd_status find_slot(struct epd_engine *engine, const struct epd_msg_desc *msg,
                                 struct epd_seat **seat_out, struct epd_error *err)
{
    struct epd_group *g = engine->groups;
    while (g != NULL && g->id != msg->group)
        g = g->link;
    if (g == NULL || msg->rank >= g->shape.ranks || g->seat[msg->rank] == NULL)
        return epd_fail(err, EPD_ENOENT, "seat %u of group %llu is not set on this engine",
                        msg->rank, (unsigned long long)msg->group);
    if (msg->desc_index >= EPD_MAX_DESCS)
        return epd_fail(err, EPD_EINVAL, "desc_index %u is above %u", msg->desc_index,
                        EPD_MAX_DESCS - 1);
    *seat_out = g->seat[msg->rank];
    return EPD_OK;
}

static enum epd_status resolve(const struct epd_engine *engine, const struct epd_msg_desc *msg,
                               uint32_t role, struct epd_array_map *out, struct epd_error *err)
{
    const struct epd_array_ref *ref = &msg->array[role];
    *out = (struct epd_array_map){0};
    if (ref->chunk == 0)
        return EPD_OK;
    const struct epd_chunk *chunk = epd_chunks_find(engine->chunks, ref->chunk);
    if (chunk == NULL || (chunk->kind != EPD_CHUNK_BUFFERS && chunk->kind != EPD_CHUNK_IMPORT))
        return epd_fail(err, EPD_EINVAL, "%s: chunk %llu is not a buffer of this engine",
                        g_role_names[role], (unsigned long long)ref->chunk);
    if (ref->offset > chunk->bytes || ref->bytes > chunk->bytes - ref->offset)
        return epd_fail(err, EPD_EINVAL, "%s: %llu bytes at %llu do not fit the chunk",
                        g_role_names[role], (unsigned long long)ref->bytes,
                        (unsigned long long)ref->offset);
    if (ref->stride > UINT32_MAX ||
        (role == EPD_ARRAY_IDS ? ref->offset % 4 != 0
                               : ref->offset % (role == EPD_ARRAY_CONTROL ? 8 : 4) != 0))
        return epd_fail(err, EPD_EINVAL, "%s: bad stride or alignment", g_role_names[role]);
    *out = (struct epd_array_map){
        .base = chunk->base + ref->offset,
        .chunk = ref->chunk,
        .offset = ref->offset,
        .bytes = ref->bytes,
        .stride = ref->stride,
    };
    return EPD_OK;
}

/* `sets` areas of n rows of `bytes` each, `stride` apart. */
static enum epd_status check_area(const struct epd_array_map *a, uint32_t role, uint64_t n,
                                  uint64_t bytes, struct epd_error *err)
{
    if (a->base == NULL || a->stride < bytes || a->bytes < bytes ||
        (a->bytes - bytes) / a->stride < n - 1)
        return epd_fail(err, EPD_EINVAL, "%s: too small for its sets", g_role_names[role]);
    return EPD_OK;
}

static enum epd_status check_words(const struct epd_array_map *a, uint32_t role, uint64_t words,
                                   struct epd_error *err)
{
    if (a->base != NULL && a->bytes / 4u < words)
        return epd_fail(err, EPD_EINVAL, "%s: too small for its sets", g_role_names[role]);
    return EPD_OK;
}

static enum epd_status check_dispatch(const struct epd_seat *seat, const struct epd_desc *desc,
                                      struct epd_error *err)
{
    const struct epd_shape *s = &seat->group->shape;
    const struct epd_array_map *a = desc->array;
    const uint64_t rows = epd_recv_rows(s) * desc->sets;
    const bool rank_major = s->layout == EPD_LAYOUT_RANK_MAJOR;
    if (desc->ids_type != EPD_IDS_INT32 && desc->ids_type != EPD_IDS_INT64)
        return epd_fail(err, EPD_EINVAL, "ids_type %u is unknown", desc->ids_type);
    if (a[EPD_ARRAY_X].base == NULL || a[EPD_ARRAY_IDS].base == NULL ||
        a[EPD_ARRAY_COUNTS].base == NULL)
        return epd_fail(err, EPD_EINVAL, "x, ids and counts are required");
    if (rank_major && (a[EPD_ARRAY_WEIGHTS].base == NULL || a[EPD_ARRAY_RECV_IDS].base == NULL ||
                       a[EPD_ARRAY_RECV_WEIGHTS].base == NULL))
        return epd_fail(err, EPD_EINVAL, "weights, recv_ids and recv_weights are required");
    if (!rank_major &&
        (a[EPD_ARRAY_RECV_IDS].base != NULL || a[EPD_ARRAY_RECV_WEIGHTS].base != NULL))
        return epd_fail(err, EPD_EINVAL, "recv_ids and recv_weights are for rank-major only");
    enum epd_status status =
        check_area(&a[EPD_ARRAY_RECV], EPD_ARRAY_RECV, rows, epd_row_bytes(s), err);
    const uint64_t words[EPD_ARRAY_ROLES] = {
        [EPD_ARRAY_COUNTS] = (uint64_t)epd_counts_len(s) * desc->sets,
        [EPD_ARRAY_RANGES] = (uint64_t)s->experts * 2u * desc->sets,
        [EPD_ARRAY_SRC] = rows,
        [EPD_ARRAY_RECV_IDS] = rows * s->topk,
        [EPD_ARRAY_RECV_WEIGHTS] = rows * s->topk,
    };
    for (uint32_t role = 0; status == EPD_OK && role < EPD_ARRAY_ROLES; role++)
        if (words[role] != 0)
            status = check_words(&a[role], role, words[role], err);
    return status;
}

static enum epd_status check_combine(const struct epd_seat *seat, const struct epd_desc *desc,
                                     struct epd_error *err)
{
    const struct epd_shape *s = &seat->group->shape;
    if (desc->array[EPD_ARRAY_OUT].base == NULL)
        return epd_fail(err, EPD_EINVAL, "out is required");
    if (s->layout == EPD_LAYOUT_EXPERT_MAJOR && desc->array[EPD_ARRAY_WEIGHTS].base == NULL)
        return epd_fail(err, EPD_EINVAL, "weights are required for expert-major");
    return check_area(&desc->array[EPD_ARRAY_ROWS], EPD_ARRAY_ROWS, epd_recv_rows(s) * desc->sets,
                      epd_row_bytes(s), err);
}

enum epd_status epd_groups_desc_set(struct epd_engine *engine, const struct epd_msg_desc *msg,
                                    struct epd_error *err)
{
    struct epd_seat *seat = NULL;
    enum epd_status status = find_slot(engine, msg, &seat, err);
    if (status != EPD_OK)
        return status;
    struct epd_desc desc = {
        .generation = msg->desc_generation,
        .kind = msg->kind,
        .ids_type = msg->ids_type,
        .sets = msg->sets,
    };
    if (desc.generation == 0 || desc.sets == 0 || desc.sets > 4096)
        return epd_fail(err, EPD_EINVAL, "desc_generation %u or sets %u is out of range",
                        desc.generation, desc.sets);
    for (uint32_t role = 0; status == EPD_OK && role < EPD_ARRAY_ROLES; role++)
        status = resolve(engine, msg, role, &desc.array[role], err);
    if (status != EPD_OK)
        return status;
    if (desc.kind == EPD_OP_DISPATCH)
        status = check_dispatch(seat, &desc, err);
    else if (desc.kind == EPD_OP_COMBINE)
        status = check_combine(seat, &desc, err);
    else
        status = epd_fail(err, EPD_EINVAL, "kind %u is neither dispatch nor combine", desc.kind);
    if (status == EPD_OK)
        seat->desc[msg->desc_index] = desc;
    return status;
}

enum epd_status epd_groups_desc_clear(struct epd_engine *engine, const struct epd_msg_desc *msg,
                                      struct epd_error *err)
{
    struct epd_seat *seat = NULL;
    enum epd_status status = find_slot(engine, msg, &seat, err);
    if (status != EPD_OK)
        return status;
    struct epd_desc *desc = &seat->desc[msg->desc_index];
    if (desc->generation != msg->desc_generation)
        return epd_fail(err, EPD_ESTALE, "descriptor %u has another generation", msg->desc_index);
    for (unsigned i = 0; i < EPD_OP_WINDOW; i++)
        if (seat->op[i].state != EPD_OP_FREE && seat->op[i].desc == desc)
            return epd_fail(err, EPD_EBUSY, "descriptor %u is in flight", msg->desc_index);
    memset(desc, 0, sizeof(*desc));
    return EPD_OK;
}

bool epd_seat_uses_chunk(const struct epd_seat *seat, uint64_t chunk)
{
    for (uint32_t i = 0; i < EPD_MAX_DESCS; i++)
        for (uint32_t role = 0; seat->desc[i].generation != 0 && role < EPD_ARRAY_ROLES; role++)
            if (seat->desc[i].array[role].chunk == chunk)
                return true;
    return false;
}
