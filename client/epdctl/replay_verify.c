#include "client/epdctl/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xa5u

struct check {
    const struct replay_seat *seat;
    uint32_t mismatches;
    char *text;
};

static void wrong(struct check *c, const char *what, uint64_t row, uint64_t at)
{
    if (c->mismatches++ == 0)
        (void)snprintf(c->text, 256, "rank %u: %s, row %" PRIu64 ", byte %" PRIu64, c->seat->rank,
                       what, row, at);
}

static void same(struct check *c, const char *what, uint64_t row, const void *got, const void *want,
                 uint64_t bytes)
{
    if (memcmp(got, want, bytes) == 0)
        return;
    uint64_t at = 0;
    while (((const uint8_t *)got)[at] == ((const uint8_t *)want)[at])
        at++;
    wrong(c, what, row, at);
}

static void untouched(struct check *c, const char *what, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++) {
        if (c->seat->base[i] != GUARD_BYTE) {
            wrong(c, what, 0, i - begin);
            return;
        }
    }
}

/* Everything of the array that is not in use[rows] (of `size` bytes each) must still be guard. */
static void unused_rows(struct check *c, const char *what, struct replay_array a, const bool *use,
                        uint64_t size)
{
    for (uint64_t r = 0; r * size < a.bytes; r++)
        if (!use[r])
            untouched(c, what, a.offset + r * size, a.offset + (r + 1) * size);
}

static void guards(struct check *c)
{
    const struct replay_seat *s = c->seat;
    const struct replay_array all[] = {s->x,      s->ids, s->weights,  s->recv,         s->counts,
                                       s->ranges, s->src, s->recv_ids, s->recv_weights, s->out};
    untouched(c, "bytes before the arrays", 0, s->x.offset);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].bytes == 0)
            continue;
        uint64_t end = s->bytes; /* up to the next array */
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            if (all[k].bytes != 0 && all[k].offset > all[i].offset && all[k].offset < end)
                end = all[k].offset;
        untouched(c, "bytes behind an array", all[i].offset + all[i].bytes, end);
    }
}

static void check_counts(struct check *c, const struct replay_plan *p,
                         const struct oracle_output *want)
{
    const uint32_t local = p->trace.experts / p->ranks;
    const int32_t *counts = (const void *)(c->seat->base + c->seat->counts.offset);
    const int32_t *ranges = (const void *)(c->seat->base + c->seat->ranges.offset);
    if (p->layout == EPD_LAYOUT_RANK_MAJOR) {
        same(c, "counts", 0, counts, want->counts, p->ranks * 4ull);
        return;
    }
    for (uint32_t le = 0; le < local; le++) {
        int32_t begin = 0;
        for (uint32_t r = 0; r < p->ranks; r++) {
            const int32_t *range = ranges + ((uint64_t)le * p->ranks + r) * 2;
            if (range[0] != begin || range[1] != want->counts[le * p->ranks + r])
                wrong(c, "ranges", le, r);
            begin += want->counts[le * p->ranks + r];
        }
        if (counts[le] != begin)
            wrong(c, "counts", le, 0);
    }
}

static uint64_t row_of(const struct replay_seat *seat, const struct replay_plan *p,
                       const struct oracle_output *want, uint32_t i)
{
    if (p->layout == EPD_LAYOUT_RANK_MAJOR)
        return (uint64_t)want->src[i * 2] * p->batch + want->index[i];
    const uint32_t le = want->expert[i] - seat->rank * (p->trace.experts / p->ranks);
    return (uint64_t)le * p->ranks * p->batch + want->index[i];
}

uint32_t replay_verify_dispatch(const struct replay_seat *seat, const struct replay_plan *p,
                                const struct oracle_output *want, char *text)
{
    struct check c = {.seat = seat, .text = text};
    const uint64_t row = (uint64_t)p->hidden * oracle_bytes(p->dtype), k = p->trace.topk;
    const uint64_t rows = seat->recv.bytes / row;
    bool *use = calloc(rows, sizeof(*use));
    if (use == NULL) {
        wrong(&c, "out of memory", 0, 0);
        return c.mismatches;
    }
    check_counts(&c, p, want);
    for (uint32_t i = 0; i < want->rows; i++) {
        const uint64_t at = row_of(seat, p, want, i);
        use[at] = true;
        same(&c, "received row", at, seat->base + seat->recv.offset + at * row,
             want->recv + i * row, row);
        same(&c, "source token", at, seat->base + seat->src.offset + at * 4, &want->src[i * 2 + 1],
             4);
        if (p->layout != EPD_LAYOUT_RANK_MAJOR)
            continue;
        same(&c, "ids", at, seat->base + seat->recv_ids.offset + at * k * 4, want->ids + i * k,
             k * 4);
        same(&c, "weights", at, seat->base + seat->recv_weights.offset + at * k * 4,
             want->weights + i * k, k * 4);
    }
    unused_rows(&c, "row past the counts", seat->recv, use, row);
    unused_rows(&c, "source token past the counts", seat->src, use, 4);
    unused_rows(&c, "ids past the counts", seat->recv_ids, use, k * 4);
    unused_rows(&c, "weights past the counts", seat->recv_weights, use, k * 4);
    untouched(&c, "result before the combine", seat->out.offset,
              seat->out.offset + seat->out.bytes);
    guards(&c);
    free(use);
    return c.mismatches;
}

uint32_t replay_verify_combine(const struct replay_seat *seat, const struct replay_plan *p,
                               const struct oracle_output *want, uint32_t b, char *text)
{
    struct check c = {.seat = seat, .text = text};
    const uint64_t row = (uint64_t)p->hidden * oracle_bytes(p->dtype);
    for (uint32_t t = 0; t < b; t++)
        same(&c, "combined row", t, seat->base + seat->out.offset + t * row,
             want->combined + t * row, row);
    untouched(&c, "combined rows past b", seat->out.offset + b * row,
              seat->out.offset + seat->out.bytes);
    guards(&c);
    return c.mismatches;
}
