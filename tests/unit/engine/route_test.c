/* From ids to the map: which selections share a row, which reach nobody, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "daemon/engine/group_internal.h"

#define R 4u
#define E 8u
#define K 4u
#define B 3u

static struct {
    struct epd_group group;
    struct epd_seat seat;
    struct epd_desc desc;
    struct epd_turn turn;
    struct epd_op op;
    int32_t given[B][K], ids[B * K];
    struct epd_term terms[B * K];
    uint8_t n_terms[B];
    uint32_t count[E], base[E];
} g;

static void route(uint32_t layout, uint64_t present, const int32_t *row)
{
    memset(&g, 0, sizeof(g));
    g.group.shape = (struct epd_shape){
        .ranks = R, .experts = E, .max_tokens = B, .topk = K, .hidden = 8, .layout = layout};
    g.group.present = present;
    g.group.buckets = epd_exchange_counts(&g.group.shape);
    for (uint32_t e = 0; e < E; e++)
        g.group.expert_rank[e] = (uint8_t)(e / 2);
    for (uint32_t t = 0; t < B; t++)
        memcpy(g.given[t], row, sizeof(g.given[t]));
    g.seat = (struct epd_seat){.group = &g.group, .rank = 2};
    g.desc.ids_type = EPD_IDS_INT32;
    g.desc.array[EPD_ARRAY_IDS] =
        (struct epd_array_map){.base = (uint8_t *)g.given, .stride = sizeof(g.given[0])};
    g.turn = (struct epd_turn){
        .ids = g.ids, .terms = g.terms, .n_terms = g.n_terms, .count = g.count, .base = g.base};
    g.op = (struct epd_op){.seat = &g.seat, .turn = &g.turn, .desc = &g.desc, .b = B};
    epd_route_run(&g.op, 0);
}

static void duplicates_share_a_row(void **state)
{
    (void)state;
    route(EPD_LAYOUT_EXPERT_MAJOR, 15, (const int32_t[K]){5, 1, 5, 5});
    assert_int_equal(g.op.cause.status, EPD_OK);
    assert_int_equal(g.count[5], B);
    assert_int_equal(g.count[1], B);
    for (uint32_t t = 0; t < B; t++) {
        const struct epd_term *term = g.terms + t * K;
        assert_int_equal(g.n_terms[t], 4);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(term[i].k, i);
            assert_int_equal(term[i].bucket, i == 1 ? 1 : 5);
            assert_int_equal(term[i].index, t);
            assert_int_equal(term[i].write, i < 2); /* the row is written once */
        }
    }
    assert_int_equal(g.turn.need, 1u << 2 | 1u << 0);
}

static void none_reaches_nobody(void **state)
{
    (void)state;
    route(EPD_LAYOUT_EXPERT_MAJOR, 15, (const int32_t[K]){-1, 7, -1, 6});
    assert_int_equal(g.count[0], 0);
    for (uint32_t t = 0; t < B; t++) {
        assert_int_equal(g.n_terms[t], 2);
        assert_int_equal(g.terms[t * K].k, 1);
        assert_int_equal(g.terms[t * K + 1].k, 3);
    }
    assert_int_equal(g.turn.need, 1u << 3);
    route(EPD_LAYOUT_RANK_MAJOR, 15, (const int32_t[K]){-1, -1, -1, -1});
    assert_int_equal(g.turn.need, 0);
    assert_int_equal(g.n_terms[0], 0);
}

static void absent_is_none(void **state)
{
    (void)state;
    for (uint32_t layout = EPD_LAYOUT_EXPERT_MAJOR; layout <= EPD_LAYOUT_RANK_MAJOR; layout++) {
        route(layout, 15 & ~(1u << 1), (const int32_t[K]){2, 4, 3, 0});
        assert_int_equal(g.turn.need, 1u << 2 | 1u << 0);
        assert_int_equal(g.n_terms[0], 2);
        assert_int_equal(g.ids[0], -1);
        assert_int_equal(g.ids[2], -1);
    }
}

static void rank_major_has_a_row_a_rank(void **state)
{
    (void)state;
    route(EPD_LAYOUT_RANK_MAJOR, 15, (const int32_t[K]){7, 2, 6, 3});
    for (uint32_t t = 0; t < B; t++) {
        assert_int_equal(g.n_terms[t], 2);
        assert_int_equal(g.terms[t * K].bucket, 1);
        assert_int_equal(g.terms[t * K + 1].bucket, 3);
        assert_int_equal(g.terms[t * K].index, t);
        assert_int_equal(g.terms[t * K + 1].write, 1);
    }
    assert_int_equal(g.count[1], B);
    assert_int_equal(g.count[3], B);
}

static void refuses(void **state)
{
    (void)state;
    static const int32_t bad[] = {-2, E, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        route(EPD_LAYOUT_EXPERT_MAJOR, 15, (const int32_t[K]){0, 1, 2, bad[i]});
        assert_int_equal(g.op.cause.status, EPD_EROUTING);
        assert_int_equal(g.op.cause.rank, 2);
        assert_int_equal(g.op.cause.field, EPD_FIELD_IDS);
        assert_int_equal(g.op.cause.value, (uint64_t)3 << 32 | (uint32_t)bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(duplicates_share_a_row),
        cmocka_unit_test(none_reaches_nobody),
        cmocka_unit_test(absent_is_none),
        cmocka_unit_test(rank_major_has_a_row_a_rank),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
