/* The oracle against values worked out by hand; the conversions against their definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "client/epdctl/oracle.h"

/* R = 2, E = 4 (L = 2), K = 2, H = 4, fp32. Rank 0 has tokens a = {1,2,3,4} -> experts 2, 0 and
 * b = {10,20,30,40} -> expert 3 twice; rank 1 has c = {5,6,7,8} -> -1, 2. */
static const int64_t g_ids0[] = {2, 0, 3, 3}, g_ids1[] = {-1, 2};
static const float g_w0[] = {0.5f, 0.25f, 1.0f, 2.0f}, g_w1[] = {9.0f, 0.5f};
static const float g_x0[] = {1, 2, 3, 4, 10, 20, 30, 40}, g_x1[] = {5, 6, 7, 8};
static const struct oracle_input g_in[2] = {{2, g_ids0, g_w0, g_x0}, {1, g_ids1, g_w1, g_x1}};
static const struct oracle_shape g_shape = {
    .ranks = 2, .experts = 4, .topk = 2, .hidden = 4, .dtype = ORACLE_FP32};

static void test_expert_major(void **state)
{
    (void)state;
    struct oracle_output o;
    assert_true(oracle_expect(&g_shape, g_in, oracle_scale_expert, 1, &o));
    /* Rank 1 owns experts 2, 3: expert 2 gets a (from 0) and c (from 1), expert 3 gets b once. */
    const uint32_t src[] = {0, 0, 1, 0, 0, 1};
    const int32_t counts[] = {1, 1, 1, 0};
    assert_int_equal(o.rows, 3);
    assert_memory_equal(o.src, src, sizeof(src));
    assert_memory_equal(o.counts, counts, sizeof(counts));
    assert_memory_equal(o.recv, g_x0, 16);
    assert_memory_equal(o.recv + 16, g_x1, 16);
    assert_memory_equal(o.recv + 32, g_x0 + 4, 16);
    /* c: w = 0.5, expert 2 multiplies by 1.5. */
    const float combined[] = {3.75f, 4.5f, 5.25f, 6.0f};
    assert_memory_equal(o.combined, combined, sizeof(combined));
    oracle_output_free(&o);
    assert_true(oracle_expect(&g_shape, g_in, oracle_scale_expert, 0, &o));
    /* a: 0.5 * 1.5 + 0.25 * 1.0 = 1.0; b: (1 + 2) * 1.75 = 5.25. */
    const float combined0[] = {1, 2, 3, 4, 52.5f, 105, 157.5f, 210};
    assert_int_equal(o.rows, 1);
    assert_memory_equal(o.combined, combined0, sizeof(combined0));
    oracle_output_free(&o);
}

static void test_rank_major(void **state)
{
    (void)state;
    struct oracle_output o;
    struct oracle_shape s = g_shape;
    s.rank_major = true;
    assert_true(oracle_expect(&s, g_in, oracle_scale_expert, 1, &o));
    const int32_t counts[] = {2, 1}, ids[] = {0, -1, 1, 1, -1, 0};
    const float weights[] = {0.5f, 0, 1, 2, 0, 0.5f};
    assert_int_equal(o.rows, 3);
    assert_memory_equal(o.counts, counts, sizeof(counts));
    assert_memory_equal(o.ids, ids, sizeof(ids));
    assert_memory_equal(o.weights, weights, sizeof(weights));
    oracle_output_free(&o);
}

static void test_absent(void **state)
{
    (void)state;
    struct oracle_output o;
    struct oracle_shape s = g_shape;
    s.absent = 2; /* rank 1 is away: a keeps expert 0 alone, b has nothing: a +0 row */
    assert_true(oracle_expect(&s, g_in, oracle_scale_expert, 0, &o));
    const float combined[] = {0.25f, 0.5f, 0.75f, 1, 0, 0, 0, 0};
    assert_memory_equal(o.combined, combined, sizeof(combined));
    oracle_output_free(&o);
}

/* Every 16-bit value survives load and store; the ordering of the values is that of the bits. */
static void test_conversions(void **state)
{
    (void)state;
    const enum oracle_dtype types[] = {ORACLE_BF16, ORACLE_FP16};
    for (unsigned k = 0; k < 2; k++) {
        float last = -1;
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t in = (uint16_t)bits, out = 0;
            const float f = oracle_load(types[k], &in, 0);
            oracle_store(types[k], &out, 0, f);
            assert_int_equal(out, isnan(f) ? 0x7fff : bits);
            if (bits < 0x8000 && !isnan(f)) {
                assert_true(f > last || (bits == 0 && f == 0));
                last = f;
            }
        }
    }
}

static uint16_t stored(enum oracle_dtype dtype, float f)
{
    uint16_t bits = 0;
    oracle_store(dtype, &bits, 0, f);
    return bits;
}

static void test_rounding(void **state)
{
    (void)state;
    assert_int_equal(stored(ORACLE_BF16, 1.0f), 0x3f80);
    assert_int_equal(stored(ORACLE_BF16, 1.00390625f), 0x3f80); /* half way: to even */
    assert_int_equal(stored(ORACLE_BF16, 1.01171875f), 0x3f82); /* half way: to even, up */
    assert_int_equal(stored(ORACLE_BF16, 3.4e38f), 0x7f80);     /* above the largest: infinity */
    assert_int_equal(stored(ORACLE_FP16, 65519.0f), 0x7bff);
    assert_int_equal(stored(ORACLE_FP16, 65520.0f), 0x7c00);
    assert_int_equal(stored(ORACLE_FP16, 0x1p-24f), 0x0001);
    assert_int_equal(stored(ORACLE_FP16, 0x1p-25f), 0x0000); /* half way: to even */
    assert_int_equal(stored(ORACLE_FP16, -0.0f), 0x8000);
    assert_int_equal(stored(ORACLE_FP16, NAN), 0x7fff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_major), cmocka_unit_test(test_rank_major),
        cmocka_unit_test(test_absent),       cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
