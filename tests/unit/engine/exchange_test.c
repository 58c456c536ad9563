/* Records of the exchange, looked at in the middle of a read and of a write, and what a group
 * believes of them. Contains exchange.c, to reach its inside. */
#include "daemon/engine/exchange.c" /* NOLINT(bugprone-suspicious-include) */

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>

#include "tests/support/trap.h"

static unsigned g_published;

void epd_engine_publish_to(struct epd_engine *engine, uint32_t device)
{
    (void)engine;
    (void)device;
    g_published++;
}

/* ---- one record, its payload in one page and its key in the next ---- */

static struct epd_xheader *g_record;
static struct epd_xheader g_next;
static uint64_t g_key_seen;

static void setup_record(void)
{
    uint8_t *pages = trap_pages(2);
    assert_non_null(pages);
    g_record = (void *)(pages + TRAP_PAGE - offsetof(struct epd_xheader, key));
}
static void *payload_page(void)
{
    return (uint8_t *)g_record - (TRAP_PAGE - offsetof(struct epd_xheader, key));
}

static void writer_comes_between(void)
{
    store_record(g_record, &g_next, sizeof(g_next), epd_word_pack(1, 6, 0));
}
static void note_key(void)
{
    g_key_seen = g_record->key;
}

static void read_is_not_torn(void **state)
{
    (void)state;
    struct epd_xheader out = {.order = 99};
    const struct epd_xheader first = {.tag_hash = 1, .order = 1};
    g_next = (struct epd_xheader){.tag_hash = 2, .order = 2};
    setup_record();
    store_record(g_record, &first, sizeof(first), epd_word_pack(1, 2, 0));
    assert_int_equal(trap_set(payload_page(), PROT_NONE, writer_comes_between), 0);
    const bool got = load_record(&out, g_record, sizeof(out), 1, 2); /* epoch 6 has its slot */
    assert_int_equal(trap_end(), 1);
    assert_false(got);
    assert_int_equal(out.order, 99);
    assert_true(load_record(&out, g_record, sizeof(out), 1, 6));
    assert_int_equal(out.order, 2);
    assert_false(load_record(&out, g_record, sizeof(out), 1, 2));
    assert_false(load_record(&out, g_record, sizeof(out), 2, 6));
    (void)munmap(payload_page(), 2u * TRAP_PAGE);
}

static void write_takes_the_key_away_first(void **state)
{
    (void)state;
    const struct epd_xheader first = {.tag_hash = 1, .order = 1};
    setup_record();
    store_record(g_record, &first, sizeof(first), epd_word_pack(1, 2, 0));
    assert_true(epd_word_is(g_record->key, 1, 2));
    assert_int_equal(trap_set(payload_page(), PROT_READ, note_key), 0);
    store_record(g_record, &first, sizeof(first), epd_word_pack(1, 6, 0));
    assert_int_equal(trap_end(), 1);
    assert_int_equal(g_key_seen, 0);
    assert_true(epd_word_is(g_record->key, 1, 6));
    (void)munmap(payload_page(), 2u * TRAP_PAGE);
}

/* ---- a group ---- */

static struct epd_engine g_engine;
static struct epd_group *group_new(void)
{
    struct epd_group *g = calloc(1, sizeof(*g));
    assert_non_null(g);
    g->engine = &g_engine;
    g->generation = 1;
    g->shape = (struct epd_shape){.ranks = 2,
                                  .experts = 4,
                                  .max_tokens = 5,
                                  .topk = 2,
                                  .hidden = 8,
                                  .dtype = EPD_DTYPE_BF16,
                                  .mode = EPD_MODE_LL,
                                  .layout = EPD_LAYOUT_EXPERT_MAJOR};
    g->buckets = epd_exchange_counts(&g->shape);
    g->map = epd_exchange_layout(&g->shape);
    g->present = 3;
    g->devices = 1;
    g->exchange[0] = calloc(1, g->map.bytes);
    assert_non_null(g->exchange[0]);
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        g->epoch[i].counts = calloc((size_t)2 * g->buckets, sizeof(uint32_t));
    return g;
}
static void group_end(struct epd_group *g)
{
    for (unsigned i = 0; i < EPD_EPOCH_SLOTS; i++)
        free(g->epoch[i].counts);
    free(g->exchange[0]);
    free(g);
}

static void header_waits_for_its_counts(void **state)
{
    (void)state;
    struct epd_group *g = group_new();
    const struct epd_xheader header = {.order = 1};
    struct epd_epoch *e = epd_exchange_epoch(g, 5);
    store_record(header_at(g, 0, g->map.dispatch, 5, 1), &header, sizeof(header),
                 epd_word_pack(1, 5, 0));
    for (uint32_t c = 0; c < g->buckets; c++) {
        assert_false(epd_exchange_poll(g, e));
        counts_at(g, 0, 5, 1)[c] = epd_word_pack(1, 1, 3); /* of four epochs ago */
        assert_false(epd_exchange_poll(g, e));
        counts_at(g, 0, 5, 1)[c] = epd_word_pack(1, 5, c == 2 ? 77 : c);
    }
    assert_true(epd_exchange_poll(g, e));
    assert_int_equal(e->headers, 2);
    assert_int_equal(e->counts[g->buckets + 1], 1);
    assert_int_equal(e->counts[g->buckets + 2], 5); /* no more than max_tokens */
    group_end(g);
}

static void epoch_begins_with_nothing(void **state)
{
    (void)state;
    struct epd_group *g = group_new();
    struct epd_epoch *e = epd_exchange_epoch(g, 1);
    e->headers = e->credits = e->combines = 3;
    assert_ptr_equal(epd_exchange_epoch(g, 1), e);
    assert_int_equal(e->headers & e->credits & e->combines, 3);
    assert_ptr_equal(epd_exchange_epoch(g, 5), e);
    assert_int_equal(e->headers | e->credits | e->combines, 0);
    assert_int_equal(e->epoch, 5);
    group_end(g);
}

static void pairs_are_of_one_epoch(void **state)
{
    (void)state;
    struct epd_group *g = group_new();
    const struct epd_seat seat = {.group = g, .rank = 1};
    *pair_at(g, 0, g->map.done, 6, 1, 0) = epd_word_pack(1, 6, 0);
    *pair_at(g, 0, g->map.released, 2, 1, 1) = epd_word_pack(1, 2, 0);
    assert_int_equal(epd_exchange_done(&seat, 6, 3), 1);
    assert_int_equal(epd_exchange_done(&seat, 2, 3), 0);
    assert_int_equal(epd_exchange_done(&seat, 6, 2), 0);
    assert_int_equal(epd_exchange_released(&seat, 2, 3), 2);
    assert_int_equal(epd_exchange_released(&seat, 6, 3), 0);
    group_end(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_is_not_torn),
        cmocka_unit_test(write_takes_the_key_away_first),
        cmocka_unit_test(header_waits_for_its_counts),
        cmocka_unit_test(epoch_begins_with_nothing),
        cmocka_unit_test(pairs_are_of_one_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
