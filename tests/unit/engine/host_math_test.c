/* The host backend's sums: every form that this CPU has, against a reference that is written here
 * another way (the compiler's own _Float16; bf16 by nearest of two neighbours). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/host/math.h"

static float bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

static uint16_t bf16_nearest(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (isnan(f))
        return 0x7fff;
    const uint16_t low = (uint16_t)(bits >> 16), high = (uint16_t)(low + 1);
    if (isinf(f) || bf16_value(low) == f)
        return low;
    /* The value above the largest finite one counts as 2^128 for rounding. */
    const double a = fabs((double)f), l = fabs((double)bf16_value(low));
    const double h = isinf(bf16_value(high)) ? 0x1p128 : fabs((double)bf16_value(high));
    if (a - l != h - a)
        return a - l < h - a ? low : high;
    return (low & 1) == 0 ? low : high;
}

static uint16_t fp16_nearest(float f)
{
    if (isnan(f))
        return 0x7fff;
    const _Float16 half = (_Float16)f;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}

static float fp16_value(uint16_t bits)
{
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float value16(uint32_t dtype, uint16_t bits)
{
    return dtype == EPD_DTYPE_BF16 ? bf16_value(bits) : fp16_value(bits);
}

static uint16_t nearest16(uint32_t dtype, float f)
{
    return dtype == EPD_DTYPE_BF16 ? bf16_nearest(f) : fp16_nearest(f);
}

static const struct epd_host_sum_form *g_forms[8]; /* found once: cpuid is slow in a VM */

#define FOR_EACH_FORM(form) for (uint32_t at_ = 0; ((form) = g_forms[at_]) != NULL; at_++)

static void forms_end_with_the_scalar_one(void **state)
{
    (void)state;
    const struct epd_host_sum_form *form, *last = NULL;
    FOR_EACH_FORM(form)
    {
        print_message("form %s\n", form->name);
        last = form;
    }
    assert_non_null(last);
    assert_string_equal(last->name, "scalar");
}

/* x + 0 for every 16-bit x: load, add, round, store. */
static void every_16_bit_value_survives(void **state)
{
    (void)state;
    static uint16_t in[65536], out[65536];
    const struct epd_host_sum_form *form;
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    FOR_EACH_FORM(form)
    for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP16; dtype++) {
        const void *rows[] = {in};
        const struct epd_token_sum sum = {.out = out, .rows = rows, .n = 1};
        memset(out, 0x55, sizeof(out));
        form->sum(&sum, 65536, dtype);
        for (uint32_t i = 0; i < 65536; i++) {
            const float v = value16(dtype, (uint16_t)i);
            const uint16_t want = isnan(v) ? 0x7fff : i == 0x8000 ? 0 : (uint16_t)i;
            if (out[i] != want)
                fail_msg("%s dtype %u: 0x%x gives 0x%x", form->name, dtype, i, out[i]);
        }
    }
}

/* A row of ones with weight w: the sum is w, any fp32 value, and the store rounds it. */
static void check_rounding(uint32_t dtype, uint32_t bits)
{
    uint16_t ones[8], out[8];
    const float w = float_of(bits);
    const void *rows[] = {ones};
    const struct epd_token_sum sum = {.out = out, .rows = rows, .weights = &w, .n = 1};
    const uint16_t want = w == 0.0f ? 0 : nearest16(dtype, w); /* +0 + -0 is +0 */
    const struct epd_host_sum_form *form;
    for (unsigned i = 0; i < 8; i++)
        ones[i] = dtype == EPD_DTYPE_BF16 ? 0x3f80 : 0x3c00;
    FOR_EACH_FORM(form)
    {
        form->sum(&sum, 8, dtype);
        for (unsigned i = 0; i < 8; i++)
            if (out[i] != want)
                fail_msg("%s dtype %u: 0x%x rounds to 0x%x, not 0x%x", form->name, dtype, bits,
                         out[i], want);
    }
}

/* Around each 16-bit value, and around the middle between it and the next one. */
static void every_rounding_boundary(void **state)
{
    (void)state;
    for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP16; dtype++)
        for (uint32_t i = 0; i < 65536; i++) {
            const float low = value16(dtype, (uint16_t)i), high = value16(dtype, (uint16_t)(i + 1));
            const uint32_t at = bits_of(low);
            const double sum = (double)low + (double)high;
            const uint32_t middle = bits_of((float)(sum / 2));
            for (uint32_t step = 0; step < 3; step++) {
                check_rounding(dtype, at + step - 1);
                if (isfinite(sum))
                    check_rounding(dtype, middle + step - 1);
            }
        }
    static const uint32_t overflow[] = {0x477fefff, 0x477ff000, 0x477ff001, 0x47800000, 0x7f7f7fff,
                                        0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fffffff};
    for (unsigned i = 0; i < sizeof(overflow) / sizeof(overflow[0]); i++)
        for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP16; dtype++) {
            check_rounding(dtype, overflow[i]);
            check_rounding(dtype, overflow[i] | 0x80000000u);
        }
}

enum { H = 2504, TERMS = 10 };
static uint16_t g_rows16[TERMS][H];
static float g_rows32[TERMS][H], g_weights[TERMS];

/* tame: values near one, as in real use, so that roundings differ; else any bit pattern. */
static void fill(uint64_t *seed, bool tame)
{
    for (unsigned k = 0; k < TERMS; k++) {
        for (unsigned h = 0; h < H; h++) {
            *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
            const uint32_t bits = (uint32_t)(*seed >> 32);
            g_rows16[k][h] = (uint16_t)(tame ? (bits >> 16 & 0x83ff) | 0x3c00 : bits >> 8);
            g_rows32[k][h] = float_of(tame ? (bits & 0x807fffff) | 0x3f800000 : bits);
        }
        const uint32_t bits = (uint32_t)(*seed >> 29) ^ 0x3f000000u;
        g_weights[k] = float_of(tame ? (bits & 0x007fffff) | 0x3f000000 : bits);
    }
}

/* The definition, one column. */
static uint32_t reference(uint32_t dtype, unsigned h, uint32_t n, const float *weights)
{
    float acc = 0.0f;
    for (unsigned k = 0; k < n; k++) {
        const float v = dtype == EPD_DTYPE_FP32 ? g_rows32[k][h] : value16(dtype, g_rows16[k][h]);
        acc = weights != NULL ? fmaf(weights[k], v, acc) : acc + v;
    }
    if (dtype == EPD_DTYPE_FP32)
        return isnan(acc) ? 0x7fffffff : bits_of(acc);
    return nearest16(dtype, acc);
}

static void check_sum(uint32_t dtype, uint32_t hidden, uint32_t n, const float *weights)
{
    static uint32_t want[H];
    static union {
        uint16_t half[H + 1];
        uint32_t full[H + 1];
    } out;
    const struct epd_host_sum_form *form;
    const void *rows[TERMS];
    for (unsigned h = 0; h < hidden; h++)
        want[h] = reference(dtype, h, n, weights);
    for (unsigned k = 0; k < TERMS; k++)
        rows[k] = dtype == EPD_DTYPE_FP32 ? (const void *)g_rows32[k] : g_rows16[k];
    const struct epd_token_sum sum = {.out = &out, .rows = rows, .weights = weights, .n = n};
    FOR_EACH_FORM(form)
    {
        memset(&out, 0x55, sizeof(out));
        form->sum(&sum, hidden, dtype);
        const bool wide = dtype == EPD_DTYPE_FP32;
        for (unsigned h = 0; h < hidden; h++) {
            const uint32_t got = wide ? out.full[h] : out.half[h];
            if (got != want[h])
                fail_msg("%s dtype %u weights %d n %u column %u: 0x%x, want 0x%x", form->name,
                         dtype, weights != NULL, n, h, got, want[h]);
        }
        /* nothing behind the row */
        assert_int_equal(wide ? out.full[hidden] : out.half[hidden], wide ? 0x55555555 : 0x5555);
    }
}

/* All counts of terms (passes of four and of one), rows that end inside a block and a vector. */
static void random_sums_equal_the_definition(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {8, 24, 1016, 1024, 1032, 2048, H};
    uint64_t seed = 12345;
    for (unsigned round = 0; round < 44; round++) {
        fill(&seed, round % 2 == 0);
        const uint32_t n = round / 2 % (TERMS + 1);
        const uint32_t h = hidden[round % (sizeof(hidden) / sizeof(hidden[0]))];
        for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP32; dtype++) {
            check_sum(dtype, h, n, g_weights);
            check_sum(dtype, h, n, NULL);
        }
    }
    check_sum(EPD_DTYPE_FP32, 4, 5, g_weights);
    check_sum(EPD_DTYPE_FP32, 1020, 5, NULL);
}

int main(void)
{
    for (uint32_t i = 0; i < 7 && (g_forms[i] = epd_host_sum_form(i)) != NULL;)
        i++;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_end_with_the_scalar_one),
        cmocka_unit_test(every_16_bit_value_survives),
        cmocka_unit_test(every_rounding_boundary),
        cmocka_unit_test(random_sums_equal_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
