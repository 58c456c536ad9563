/* Comparing a seat's buffers with what the oracle says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/ring.h"
#include "tests/support/expect.h"
#include "tests/support/proc.h"
#include "tests/support/rng.h"
#include "tests/support/seat.h"
#include "tests/support/seat_internal.h"

#define NOTIFY_MS 1000

static bool complain(struct seat *s, const struct epd_result *r, const char *what, char *text)
{
    char copy[SEAT_TEXT];
    (void)snprintf(copy, sizeof(copy), "%s", what);
    (void)snprintf(text, SEAT_TEXT, "rank %u epoch %llu %s: %.400s", s->c.rank,
                   (unsigned long long)r->epoch, r->kind == EPD_OP_COMBINE ? "combine" : "dispatch",
                   copy);
    return false;
}

/* ---- dispatch --------------------------------------------------------------------------- */

static void expect_received(struct seat *s, const struct seat_turn *turn, const struct expect *e)
{
    const struct epd_shape *p = &s->c.w.shape;
    const size_t row = epd_row_bytes(p), k = p->topk;
    const uint64_t base = turn->set * epd_recv_rows(p);
    for (uint32_t i = 0; i < e->rows; i++) {
        const uint64_t at = base + e->at[i];
        image_expect(&s->out, s->recv + at * s->recv_stride, e->recv + i * row, row);
        if (!(s->c.flags & SEAT_BARE))
            image_expect(&s->out, s->src + at * 4u, &e->src[i], 4);
        if (p->layout != EPD_LAYOUT_RANK_MAJOR)
            continue;
        image_expect(&s->out, s->recv_ids + at * k * 4u, e->ids + i * k, k * 4u);
        image_expect(&s->out, s->recv_weights + at * k * 4u, e->weights + i * k, k * 4u);
    }
    const size_t counts = epd_counts_len(p) * 4u;
    image_expect(&s->out, s->counts + turn->set * counts, e->counts, counts);
    if (p->layout == EPD_LAYOUT_EXPERT_MAJOR && !(s->c.flags & SEAT_BARE)) {
        const size_t ranges = p->experts * 8u;
        image_expect(&s->out, s->ranges + turn->set * ranges, e->ranges, ranges);
    }
}

/* The areas of one receive set, whole. */
static bool same_received(struct seat *s, uint32_t set, char *where)
{
    const struct epd_shape *p = &s->c.w.shape;
    const uint64_t rows = epd_recv_rows(p);
    const struct {
        size_t at, bytes;
    } area[] = {
        {s->recv, rows * s->recv_stride},
        {s->counts, epd_counts_len(p) * 4u},
        {s->src, rows * 4u},
        {s->ranges, p->layout == EPD_LAYOUT_EXPERT_MAJOR ? p->experts * 8u : 0},
        {s->recv_ids, p->layout == EPD_LAYOUT_RANK_MAJOR ? rows * p->topk * 4u : 0},
        {s->recv_weights, p->layout == EPD_LAYOUT_RANK_MAJOR ? rows * p->topk * 4u : 0},
    };
    for (size_t i = 0; i < sizeof(area) / sizeof(area[0]); i++)
        if (!image_same(&s->out, area[i].at + set * area[i].bytes, area[i].bytes, where, SEAT_TEXT))
            return false;
    return true;
}

/* ---- combine ---------------------------------------------------------------------------- */

static bool same_combined(struct seat *s, const struct seat_turn *turn, const struct expect *e,
                          char *where)
{
    const size_t row = epd_row_bytes(&s->c.w.shape), B = s->c.w.shape.max_tokens;
    const size_t at = s->result + (turn->epoch % SEAT_TURNS) * B * s->result_stride;
    for (uint32_t t = 0; t < turn->b; t++)
        image_expect(&s->in, at + t * s->result_stride, e->out + t * row, row);
    return image_same(&s->in, at, B * s->result_stride, where, SEAT_TEXT);
}

/* ---- both ------------------------------------------------------------------------------- */

static bool notified(struct seat *s, uint64_t epoch, uint32_t kind, char *where)
{
    const uint64_t one = 1;
    const size_t at = s->control + seat_control_at(epoch, kind) + 8;
    uint64_t start = now_ns(), *word = (uint64_t *)(void *)(s->in.mem + at);
    if (!(s->c.flags & SEAT_NOTIFY))
        return true;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 && ms_since(start) < slow_ms(NOTIFY_MS))
        sleep_ms(1);
    image_expect(&s->in, at, &one, sizeof(one));
    return image_same(&s->in, at, sizeof(one), where, SEAT_TEXT);
}

static bool fields(struct seat *s, const struct epd_result *r, const struct seat_turn *turn,
                   char *where)
{
    char text[256];
    if (r->status != EPD_OK) {
        (void)snprintf(where, SEAT_TEXT, "%s: %s", epd_status_string(r->status),
                       epd_result_describe(r, text, sizeof(text)));
        return false;
    }
    if (r->kind == EPD_OP_DISPATCH && r->released_epoch < turn->released) {
        (void)snprintf(where, SEAT_TEXT,
                       "%llu epochs released at its completion, at least %llu should be",
                       (unsigned long long)r->released_epoch, (unsigned long long)turn->released);
        return false;
    }
    if (turn->used && turn->epoch == r->epoch && r->epoch_consumed == 1 &&
        r->tag == workload_tag(&s->c.w, turn->step))
        return true;
    (void)snprintf(where, SEAT_TEXT,
                   "epoch %llu (turn %llu), consumed %u, tag %08x (expected %08x)",
                   (unsigned long long)r->epoch, (unsigned long long)turn->epoch, r->epoch_consumed,
                   r->tag, workload_tag(&s->c.w, turn->step));
    return false;
}

static bool verify_data(struct seat *s, const struct epd_result *r, const struct seat_turn *turn,
                        char *where)
{
    struct batch batch;
    struct expect e;
    batch_init(&batch, &s->c.w, turn->step);
    expect_init(&e, &s->c.w, &batch, s->c.rank);
    const uint32_t rows = r->kind == EPD_OP_DISPATCH ? e.rows : turn->b;
    bool ok = r->rows == rows;
    if (!ok)
        (void)snprintf(where, SEAT_TEXT, "%u rows, expected %u", r->rows, rows);
    if (ok && r->kind == EPD_OP_DISPATCH) {
        expect_received(s, turn, &e);
        ok = same_received(s, turn->set, where);
    } else if (ok) {
        ok = same_combined(s, turn, &e, where);
    }
    expect_fini(&e);
    batch_fini(&batch);
    return ok;
}

bool seat_verify(struct seat *s, const struct epd_result *r, char *text)
{
    char where[SEAT_TEXT] = "?";
    const struct seat_turn *turn = seat_turn(s, r->epoch);
    if (r->kind == EPD_OP_RELEASE && r->status == EPD_OK)
        return true;
    if (!fields(s, r, turn, where))
        return complain(s, r, where, text);
    if (!verify_data(s, r, turn, where) ||
        !notified(s, r->epoch, r->kind == EPD_OP_DISPATCH ? 0 : 1, where))
        return complain(s, r, where, text);
    return true;
}

bool seat_quiet(struct seat *s, char *text)
{
    char where[SEAT_TEXT];
    if (image_same_all(&s->in, where, sizeof(where)) &&
        image_same_all(&s->out, where, sizeof(where)))
        return true;
    (void)snprintf(text, SEAT_TEXT, "rank %u, quiet: %.400s", s->c.rank, where);
    return false;
}

void seat_forgive(struct seat *s)
{
    for (uint32_t i = 0; i < s->out.regions; i++) {
        const struct image_region *r = &s->out.region[i];
        memcpy(s->out.shadow + r->offset, s->out.mem + r->offset, r->bytes);
    }
    memcpy(s->in.shadow + s->result, s->in.mem + s->result,
           SEAT_TURNS * (size_t)s->c.w.shape.max_tokens * s->result_stride);
    memcpy(s->in.shadow + s->control, s->in.mem + s->control, SEAT_TURNS * 2u * 16u);
}

uint64_t seat_digest(const struct seat *s)
{
    return rng_mix(rng_digest(s->in.mem, s->in.bytes) ^
                   rng_mix(rng_digest(s->out.mem, s->out.bytes)));
}
