/* The terms add up, and placement follows its rule. */
#include "daemon/core/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/group.h"
#include "proto/exchange.h"

static struct epd_shape shape(uint32_t layout)
{
    return (struct epd_shape){.ranks = 8,
                              .experts = 64,
                              .max_tokens = 128,
                              .topk = 8,
                              .hidden = 7168,
                              .dtype = EPD_DTYPE_BF16,
                              .mode = EPD_MODE_LL,
                              .layout = layout};
}

static void terms(void **state)
{
    struct epd_plan p;
    struct epd_shape s = shape(EPD_LAYOUT_EXPERT_MAJOR);
    (void)state;
    assert_int_equal(epd_plan_group(&s, &p, NULL), EPD_OK);
    assert_string_equal(p.term[0].name, "receive");
    assert_int_equal(p.term[0].bytes, 8ull * 8 * 128 * 7168 * 2); /* L R B H s */
    assert_int_equal(p.term[1].bytes, p.term[0].bytes);
    assert_int_equal(p.term[2].bytes, 2ull * 128 * 7168 * 2);
    uint64_t sum = 0;
    for (unsigned i = 0; i < EPD_PLAN_TERMS; i++)
        sum += p.term[i].bytes;
    assert_true(p.seat_bytes >= sum && p.seat_bytes < sum + (4u << 20));
    assert_int_equal(p.seat_bytes % (2u << 20), 0);
    assert_int_equal(p.group_bytes, p.seat_bytes * 8);
    assert_int_equal(p.engine_bytes, epd_exchange_bytes(&s));
    s = shape(EPD_LAYOUT_RANK_MAJOR);
    assert_int_equal(epd_plan_group(&s, &p, NULL), EPD_OK);
    assert_int_equal(p.term[0].bytes, 8ull * 128 * 7168 * 2); /* R B H s */
}

static void bad_shape(void **state)
{
    struct epd_plan p;
    struct epd_error err;
    struct epd_shape s = shape(EPD_LAYOUT_RANK_MAJOR);
    (void)state;
    s.experts = 65;
    assert_int_equal(epd_plan_group(&s, &p, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "experts"));
}

static void placement(void **state)
{
    const struct epd_shape s = shape(EPD_LAYOUT_RANK_MAJOR);
    const uint8_t block[8] = {0, 0, 0, 1, 1, 1, 2, 2}, robin[8] = {0, 1, 2, 0, 1, 2, 0, 1};
    const uint32_t given[8] = {2, 2, 2, 2, 0, 0, 0, 0}, wrong[8] = {0, 0, 0, 3};
    struct epd_placement_request r = {.n_devices = 3};
    struct epd_error err;
    uint8_t device[EPD_MAX_RANKS];
    (void)state;
    assert_int_equal(epd_group_place(&s, &r, device, NULL), EPD_OK);
    assert_memory_equal(device, block, 8);
    r.roundrobin = true;
    assert_int_equal(epd_group_place(&s, &r, device, NULL), EPD_OK);
    assert_memory_equal(device, robin, 8);
    r.explicit_devices = given;
    r.n = 8;
    assert_int_equal(epd_group_place(&s, &r, device, NULL), EPD_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(device[i], given[i]);
    r.n = 7;
    assert_int_equal(epd_group_place(&s, &r, device, &err), EPD_EINVAL);
    r.n = 8;
    r.explicit_devices = wrong;
    assert_int_equal(epd_group_place(&s, &r, device, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "placement[3]"));
}

static void names(void **state)
{
    char longest[65];
    (void)state;
    memset(longest, 'a', sizeof(longest));
    longest[64] = '\0';
    assert_false(epd_group_name_valid(longest));
    longest[63] = '\0';
    assert_true(epd_group_name_valid(longest));
    assert_true(epd_group_name_valid("A-b_c.9"));
    assert_false(epd_group_name_valid(""));
    assert_false(epd_group_name_valid("a b"));
    assert_false(epd_group_name_valid("a/b"));
    assert_false(epd_group_name_valid("\xc3\xa4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(terms), cmocka_unit_test(bad_shape),
                                       cmocka_unit_test(placement), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
