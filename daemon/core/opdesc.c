#include "daemon/core/opdesc.h"

#include "proto/ring.h"

enum need { NEED_NO, NEED_MAY, NEED_MUST };

/* What the shape asks of one array. */
struct rule {
    const char *name;
    enum need need;
    uint64_t row_bytes; /* of one row */
    uint64_t rows;      /* at least */
    uint32_t align;     /* of the offset, and of the stride */
    bool dense;         /* no stride but row_bytes */
    bool own;           /* in the session's chunks: peers or the engine write it */
};

static const char *const g_dispatch_names[EPD_ARRAY_ROLES] = {
    "x",      "ids", "weights",  "recv",         "counts",
    "ranges", "src", "recv_ids", "recv_weights", "control"};
static const char *const g_combine_names[EPD_ARRAY_ROLES] = {
    "rows",   "ids", "weights",  "out",          "counts",
    "ranges", "src", "recv_ids", "recv_weights", "control"};

static enum need must_if(bool condition)
{
    return condition ? NEED_MUST : NEED_NO;
}

static void dispatch_rules(const struct epd_shape *s, const struct epd_opdesc *d,
                           struct rule rules[EPD_ARRAY_ROLES])
{
    const bool rank_major = s->layout == EPD_LAYOUT_RANK_MAJOR;
    const uint32_t row = epd_row_bytes(s);
    const uint32_t id = epd_ids_bytes(d->ids_type);
    const uint64_t k = s->topk;
    const uint64_t recv_rows = epd_recv_rows(s) * d->sets; /* <= 2^28 * 2^12 */
    rules[EPD_ARRAY_X] = (struct rule){.need = NEED_MUST, .row_bytes = row, .rows = 1, .align = 16};
    rules[EPD_ARRAY_IDS] =
        (struct rule){.need = NEED_MUST, .row_bytes = k * id, .rows = 1, .align = id};
    rules[EPD_ARRAY_WEIGHTS] =
        (struct rule){.need = must_if(rank_major), .row_bytes = k * 4, .rows = 1, .align = 4};
    rules[EPD_ARRAY_RECV] = (struct rule){
        .need = NEED_MUST, .row_bytes = row, .rows = recv_rows, .align = 16, .own = true};
    rules[EPD_ARRAY_COUNTS] = (struct rule){.need = NEED_MUST,
                                            .row_bytes = epd_counts_len(s) * 4ull,
                                            .rows = d->sets,
                                            .align = 4,
                                            .dense = true,
                                            .own = true};
    rules[EPD_ARRAY_RANGES] = (struct rule){.need = rank_major ? NEED_NO : NEED_MAY,
                                            .row_bytes = s->experts * 8ull,
                                            .rows = d->sets,
                                            .align = 4,
                                            .dense = true,
                                            .own = true};
    rules[EPD_ARRAY_SRC] = (struct rule){.need = NEED_MAY,
                                         .row_bytes = 4,
                                         .rows = recv_rows,
                                         .align = 4,
                                         .dense = true,
                                         .own = true};
    rules[EPD_ARRAY_RECV_IDS] = (struct rule){.need = must_if(rank_major),
                                              .row_bytes = k * 4,
                                              .rows = recv_rows,
                                              .align = 4,
                                              .dense = true,
                                              .own = true};
    rules[EPD_ARRAY_RECV_WEIGHTS] = rules[EPD_ARRAY_RECV_IDS];
    rules[EPD_ARRAY_CONTROL] =
        (struct rule){.need = NEED_MAY, .row_bytes = 8, .rows = 1, .align = 8, .dense = true};
}

static void combine_rules(const struct epd_shape *s, const struct epd_opdesc *d,
                          struct rule rules[EPD_ARRAY_ROLES])
{
    const uint32_t row = epd_row_bytes(s);
    rules[EPD_ARRAY_ROWS] = (struct rule){
        .need = NEED_MUST, .row_bytes = row, .rows = epd_recv_rows(s) * d->sets, .align = 16};
    rules[EPD_ARRAY_WEIGHTS] = (struct rule){.need = must_if(s->layout == EPD_LAYOUT_EXPERT_MAJOR),
                                             .row_bytes = s->topk * 4ull,
                                             .rows = 1,
                                             .align = 4};
    rules[EPD_ARRAY_OUT] =
        (struct rule){.need = NEED_MUST, .row_bytes = row, .rows = 1, .align = 16};
    rules[EPD_ARRAY_CONTROL] =
        (struct rule){.need = NEED_MAY, .row_bytes = 8, .rows = 1, .align = 8, .dense = true};
}

static enum epd_status check_place(const struct rule *rule, const struct epd_opdesc_array *a,
                                   const struct epd_opdesc *d, struct epd_error *err)
{
    if (rule->own && a->import)
        return epd_fail(err, EPD_EINVAL,
                        "%s: imported memory cannot be written by peers; use a "
                        "buffer of the daemon",
                        rule->name);
    if (a->device != d->device)
        return epd_fail(err, EPD_EINVAL, "%s: its buffer is on device %u, the seat on device %u",
                        rule->name, a->device, d->device);
    if (a->offset >= a->size)
        return epd_fail(err, EPD_EINVAL, "%s: offset %llu is outside its buffer of %llu bytes",
                        rule->name, (unsigned long long)a->offset, (unsigned long long)a->size);
    if (a->bytes > a->size - a->offset)
        return epd_fail(err, EPD_EINVAL, "%s: bytes %llu at offset %llu leave its buffer of %llu",
                        rule->name, (unsigned long long)a->bytes, (unsigned long long)a->offset,
                        (unsigned long long)a->size);
    if ((a->base + a->offset) % rule->align != 0)
        return epd_fail(err, EPD_EINVAL, "%s: offset %llu must be a multiple of %u", rule->name,
                        (unsigned long long)a->offset, rule->align);
    return EPD_OK;
}

static enum epd_status check_size(const struct rule *rule, const struct epd_opdesc_array *a,
                                  struct epd_array_ref *ref, struct epd_error *err)
{
    const uint64_t bytes = a->bytes != 0 ? a->bytes : a->size - a->offset;
    const uint64_t stride = a->stride != 0 ? a->stride : rule->row_bytes;
    if (rule->dense && stride != rule->row_bytes)
        return epd_fail(err, EPD_EINVAL, "%s: stride %llu, the array must be dense (0 or %llu)",
                        rule->name, (unsigned long long)stride,
                        (unsigned long long)rule->row_bytes);
    if (stride < rule->row_bytes || stride > UINT32_MAX || stride % rule->align != 0)
        return epd_fail(err, EPD_EINVAL,
                        "%s: stride %llu must be at least a row of %llu bytes and a multiple of %u",
                        rule->name, (unsigned long long)stride, (unsigned long long)rule->row_bytes,
                        rule->align);
    if (bytes < rule->row_bytes || (bytes - rule->row_bytes) / stride < rule->rows - 1)
        return epd_fail(err, EPD_EINVAL,
                        "%s: %llu bytes, needs %llu rows of %llu bytes, %llu apart", rule->name,
                        (unsigned long long)bytes, (unsigned long long)rule->rows,
                        (unsigned long long)rule->row_bytes, (unsigned long long)stride);
    *ref = (struct epd_array_ref){
        .chunk = a->chunk, .offset = a->base + a->offset, .bytes = bytes, .stride = stride};
    return EPD_OK;
}

static enum epd_status check_head(const struct epd_opdesc *d, struct epd_error *err)
{
    if (d->kind != EPD_OP_DISPATCH && d->kind != EPD_OP_COMBINE)
        return epd_fail(err, EPD_EINVAL, "kind %u must be dispatch (1) or combine (2)", d->kind);
    if (d->sets < 1 || d->sets > EPD_OPDESC_SETS_MAX)
        return epd_fail(err, EPD_EINVAL, "sets %u must be 1..%u", d->sets, EPD_OPDESC_SETS_MAX);
    if (d->kind == EPD_OP_DISPATCH && d->ids_type != EPD_IDS_INT32 && d->ids_type != EPD_IDS_INT64)
        return epd_fail(err, EPD_EINVAL, "ids_type %u must be int32 (1) or int64 (2)", d->ids_type);
    return EPD_OK;
}

enum epd_status epd_opdesc_check(const struct epd_shape *shape, const struct epd_opdesc *desc,
                                 struct epd_array_ref refs_out[EPD_ARRAY_ROLES],
                                 struct epd_error *err)
{
    struct rule rules[EPD_ARRAY_ROLES] = {{0}};
    struct epd_array_ref refs[EPD_ARRAY_ROLES] = {{0}};
    enum epd_status status = check_head(desc, err);
    if (status != EPD_OK)
        return status;
    const bool dispatch = desc->kind == EPD_OP_DISPATCH;
    if (dispatch)
        dispatch_rules(shape, desc, rules);
    else
        combine_rules(shape, desc, rules);
    for (uint32_t role = 0; role < EPD_ARRAY_ROLES && status == EPD_OK; role++) {
        struct rule *rule = &rules[role];
        const struct epd_opdesc_array *a = &desc->array[role];
        rule->name = dispatch ? g_dispatch_names[role] : g_combine_names[role];
        if (!a->present && rule->need == NEED_MUST)
            return epd_fail(err, EPD_EINVAL, "%s: missing", rule->name);
        if (a->present && rule->need == NEED_NO)
            return epd_fail(err, EPD_EINVAL, "%s: this op and layout have no such array",
                            rule->name);
        if (!a->present)
            continue;
        status = check_place(rule, a, desc, err);
        if (status == EPD_OK)
            status = check_size(rule, a, &refs[role], err);
    }
    for (uint32_t role = 0; role < EPD_ARRAY_ROLES && status == EPD_OK; role++)
        refs_out[role] = refs[role];
    return status;
}
