/* test-timeout: 30 */
/* The checker checked: without a daemon, results written by hand pass, and each kind of damage to
 * them (a row, a count, a range, a source, padding, rows past the counts, guards, another set, a
 * result field) fails. So a green suite means something. */
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

#include "proto/ring.h"
#include "tests/support/expect.h"
#include "tests/support/rng.h"
#include "tests/support/seat_internal.h"

struct bench {
    struct seat s;
    struct expect e;
    struct epd_result dispatch, combine;
    uint8_t *in, *out;
    uint32_t set;
};

static void put(struct bench *b, size_t at, const void *data, size_t n)
{
    memcpy(b->s.out.mem + at, data, n);
}

/* What an engine would write. */
static void write_results(struct bench *b)
{
    struct seat *s = &b->s;
    const struct epd_shape *p = &s->c.w.shape;
    const size_t row = epd_row_bytes(p), k = p->topk;
    for (uint32_t i = 0; i < b->e.rows; i++) {
        const size_t at = b->set * epd_recv_rows(p) + b->e.at[i];
        put(b, s->recv + at * s->recv_stride, b->e.recv + i * row, row);
        put(b, s->src + at * 4, &b->e.src[i], 4);
        if (p->layout == EPD_LAYOUT_RANK_MAJOR) {
            put(b, s->recv_ids + at * k * 4, b->e.ids + i * k, k * 4);
            put(b, s->recv_weights + at * k * 4, b->e.weights + i * k, k * 4);
        }
    }
    put(b, s->counts + b->set * epd_counts_len(p) * 4, b->e.counts, epd_counts_len(p) * 4);
    if (p->layout == EPD_LAYOUT_EXPERT_MAJOR)
        put(b, s->ranges + b->set * p->experts * 8u, b->e.ranges, p->experts * 8u);
    for (uint32_t t = 0; t < s->turn[1].b; t++)
        memcpy(s->in.mem + s->result + (p->max_tokens + t) * s->result_stride, b->e.out + t * row,
               row);
}

static void bench_open(struct bench *b, uint32_t layout)
{
    struct batch batch;
    struct seat *s = &b->s;
    *b = (struct bench){.set = 1};
    s->c = (struct seat_config){
        .w = {.shape = {4, 8, 8, 3, 16, EPD_DTYPE_BF16, EPD_MODE_LL, layout},
              .seed = 5,
              .ids_type = EPD_IDS_INT64},
        .rank = 2,
        .sets = 2,
        .flags = SEAT_STRIDED,
    };
    seat_memory_plan(s);
    b->in = need_memory(image_bytes(&s->in));
    b->out = need_memory(image_bytes(&s->out));
    image_init(&s->in, b->in, 1);
    image_init(&s->out, b->out, 2);
    s->turn[1] = (struct seat_turn){
        .epoch = 1, .step = 0, .b = workload_b(&s->c.w, 0, 2), .set = b->set, .used = true};
    batch_init(&batch, &s->c.w, 0);
    expect_init(&b->e, &s->c.w, &batch, 2);
    batch_fini(&batch);
    write_results(b);
    b->dispatch = (struct epd_result){.kind = EPD_OP_DISPATCH,
                                      .epoch = 1,
                                      .epoch_consumed = 1,
                                      .tag = workload_tag(&s->c.w, 0),
                                      .rows = b->e.rows};
    b->combine = b->dispatch;
    b->combine.kind = EPD_OP_COMBINE;
    b->combine.rows = s->turn[1].b;
}

static void bench_close(struct bench *b)
{
    expect_fini(&b->e);
    image_fini(&b->s.in);
    image_fini(&b->s.out);
    free(b->in);
    free(b->out);
}

static bool passes(struct bench *b)
{
    char text[SEAT_TEXT];
    return seat_verify(&b->s, &b->dispatch, text) && seat_verify(&b->s, &b->combine, text) &&
           seat_quiet(&b->s, text);
}

/* One bit of one byte. */
static void damage(struct bench *b, uint8_t *byte, const char *what)
{
    *byte ^= 1;
    check_true(!passes(b), "damage to %s is not seen", what);
    *byte ^= 1;
    check_true(passes(b), "after the repair of %s", what);
}

static void damage_fields(struct bench *b)
{
    uint32_t *field[] = {&b->dispatch.rows, &b->dispatch.tag, &b->dispatch.epoch_consumed,
                         &b->combine.rows, &b->combine.tag};
    for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++) {
        *field[i] ^= 1;
        check_true(!passes(b), "wrong result field %zu is not seen", i);
        *field[i] ^= 1;
    }
    b->dispatch.status = EPD_EINTERNAL;
    check_true(!passes(b), "a failed status is not seen");
    b->dispatch.status = EPD_OK;
    b->s.turn[1].released = 1;
    check_true(!passes(b), "a dispatch that came before a release is not seen");
    b->dispatch.released_epoch = 1;
    check_true(passes(b), "a dispatch that came after a release");
    b->dispatch.epoch++;
    check_true(!passes(b), "another epoch is not seen");
    b->dispatch.epoch--;
}

static void layout_is_checked(uint32_t layout)
{
    struct bench b;
    bench_open(&b, layout);
    struct seat *s = &b.s;
    const struct epd_shape *p = &s->c.w.shape;
    const size_t rows = epd_recv_rows(p), first = b.set * rows + b.e.at[0];
    check_true(b.e.rows > 2 && s->turn[1].b > 1, "the sample is too small");
    check_true(passes(&b), "right results do not pass");
    damage(&b, s->out.mem + s->recv + first * s->recv_stride, "a row");
    damage(&b, s->out.mem + s->recv + first * s->recv_stride + epd_row_bytes(p), "row padding");
    damage(&b, s->out.mem + s->recv + (2 * rows - 1) * s->recv_stride, "a row past the counts");
    damage(&b, s->out.mem + s->recv, "another set");
    damage(&b, s->out.mem + s->src + first * 4, "a source");
    damage(&b, s->out.mem + s->counts + b.set * epd_counts_len(p) * 4, "a count");
    damage(&b, s->out.mem + s->recv - 1, "the guard before an array");
    damage(&b, s->out.mem + s->counts - 1, "the guard behind an array");
    damage(&b, s->out.mem, "the first byte");
    damage(&b, s->out.mem + s->out.bytes - 1, "the last byte");
    damage(&b, s->in.mem + s->result + p->max_tokens * s->result_stride, "a combined row");
    damage(&b, s->in.mem + s->result, "another epoch's combined row");
    damage(&b, s->in.mem + s->x, "an input");
    if (layout == EPD_LAYOUT_EXPERT_MAJOR) {
        damage(&b, s->out.mem + s->ranges + b.set * p->experts * 8u + 4, "a range");
    } else {
        damage(&b, s->out.mem + s->recv_ids + first * p->topk * 4, "an id");
        damage(&b, s->out.mem + s->recv_weights + first * p->topk * 4, "a weight");
    }
    damage_fields(&b);
    bench_close(&b);
}

static void expert_major(void **state)
{
    (void)state;
    layout_is_checked(EPD_LAYOUT_EXPERT_MAJOR);
}

static void rank_major(void **state)
{
    (void)state;
    layout_is_checked(EPD_LAYOUT_RANK_MAJOR);
}

/* Rows of different experts and tokens differ, so a swap cannot pass; routings are what they say.
 */
static void workloads_differ(void **state)
{
    (void)state;
    struct workload w = {
        .shape = {4, 16, 12, 4, 16, EPD_DTYPE_FP16, EPD_MODE_LL, EPD_LAYOUT_EXPERT_MAJOR},
        .seed = 9,
        .ids_type = EPD_IDS_INT32,
        .b_pattern = B_FULL};
    uint8_t x[12 * 32], y[32], z[32];
    workload_x(&w, 0, 0, x);
    for (uint32_t t = 1; t < 12; t++)
        check_true(memcmp(x, x + t * 32, 32) != 0, "tokens 0 and %u are equal", t);
    expect_expert(&w.shape, 3, x, y);
    expect_expert(&w.shape, 4, x, z);
    check_true(memcmp(y, z, 32) != 0, "experts 3 and 4 are equal");
    for (uint32_t routing = 0; routing < ROUTE_KINDS; routing++) {
        int32_t ids[48];
        uint32_t none = 0, zero = 0, foreign = 0;
        w.routing = routing;
        workload_ids(&w, 0, 0, ids);
        for (uint32_t i = 0; i < 48; i++) {
            check_true(ids[i] >= -1 && ids[i] < 16, "%s: id %d", routing_name(routing), ids[i]);
            none += ids[i] < 0;
            zero += ids[i] == 0;
            foreign += ids[i] >= 4;
        }
        const bool may_none =
            routing == ROUTE_SOME_NONE || routing == ROUTE_ROW_NONE || routing == ROUTE_DUPLICATES;
        check_true((none > 0) == may_none, "%s: %u of 48 are -1", routing_name(routing), none);
        check_true((zero == 48) == (routing == ROUTE_EXPERT_0), "%s: %u of 48 are 0",
                   routing_name(routing), zero);
        check_true((foreign == 0) == (routing == ROUTE_OWN || routing == ROUTE_EXPERT_0 ||
                                      routing == ROUTE_ONE_SENDS || routing == ROUTE_DUPLICATES),
                   "%s: %u foreign", routing_name(routing), foreign);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expert_major),
        cmocka_unit_test(rank_major),
        cmocka_unit_test(workloads_differ),
    };
    return cmocka_run_group_tests_name("checker", tests, NULL, NULL);
}
