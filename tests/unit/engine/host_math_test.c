/* The host backend's sums: the vectorised form against the scalar one, and both against a reference
 * that is written here another way (the compiler's own _Float16; bf16 by nearest of two neighbours). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
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

typedef void sum_fn(const struct epd_token_sum *, uint32_t, uint32_t);
static sum_fn *const g_forms[] = {epd_host_sum_token, epd_host_sum_token_scalar};

/* x + 0 for every 16-bit x: load, add, round, store. */
static void test_every_16_bit_value(void **state)
{
    (void)state;
    uint16_t *in = malloc(65536 * 2), *out = malloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (unsigned form = 0; form < 2; form++)
        for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP16; dtype++) {
            const void *rows[] = {in};
            const struct epd_token_sum sum = {.out = out, .rows = rows, .n = 1};
            memset(out, 0x55, 65536 * 2);
            g_forms[form](&sum, 65536, dtype);
            for (uint32_t i = 0; i < 65536; i++) {
                const float v = dtype == EPD_DTYPE_BF16 ? bf16_value((uint16_t)i)
                                                        : fp16_value((uint16_t)i);
                const uint16_t want = isnan(v) ? 0x7fff : i == 0x8000 ? 0 : (uint16_t)i;
                if (out[i] != want)
                    fail_msg("dtype %u: 0x%x gives 0x%x", dtype, i, out[i]);
            }
        }
    free(in);
    free(out);
}

/* Any fp32 bit pattern as a weight: products of all magnitudes, NaN and infinities included. */
static void test_random_sums(void **state)
{
    (void)state;
    enum { H = 1500, K = 8 };
    static uint16_t rows16[K][H];
    static float rows32[K][H];
    uint64_t seed = 12345;
    for (unsigned round = 0; round < 200; round++) {
        float weights[K];
        for (unsigned k = 0; k < K; k++) {
            for (unsigned h = 0; h < H; h++) {
                seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                rows16[k][h] = (uint16_t)(seed >> 40);
                const uint32_t bits = (uint32_t)(seed >> 32);
                memcpy(&rows32[k][h], &bits, 4);
            }
            const uint32_t bits = (uint32_t)(seed >> 33) ^ 0x3f000000u;
            memcpy(&weights[k], &bits, 4);
        }
        for (uint32_t dtype = EPD_DTYPE_BF16; dtype <= EPD_DTYPE_FP32; dtype++)
            for (unsigned weighted = 0; weighted < 2; weighted++) {
                const void *rows[K];
                static uint8_t out[2][H * 4];
                const uint32_t n = round % (K + 1);
                for (unsigned k = 0; k < K; k++)
                    rows[k] = dtype == EPD_DTYPE_FP32 ? (const void *)rows32[k] : rows16[k];
                for (unsigned form = 0; form < 2; form++) {
                    const struct epd_token_sum sum = {
                        .out = out[form], .rows = rows, .weights = weighted ? weights : NULL, .n = n};
                    g_forms[form](&sum, H, dtype);
                }
                for (unsigned h = 0; h < H; h++) {
                    float acc = 0.0f;
                    for (unsigned k = 0; k < n; k++) {
                        const float v = dtype == EPD_DTYPE_FP32   ? rows32[k][h]
                                        : dtype == EPD_DTYPE_BF16 ? bf16_value(rows16[k][h])
                                                                  : fp16_value(rows16[k][h]);
                        acc = weighted ? fmaf(weights[k], v, acc) : acc + v;
                    }
                    uint32_t want, got[2];
                    for (unsigned form = 0; form < 2; form++) {
                        uint16_t half;
                        memcpy(&half, out[form] + h * 2, 2);
                        memcpy(&got[form], out[form] + h * 4 % sizeof(out[0]), 4);
                        if (dtype != EPD_DTYPE_FP32)
                            got[form] = half;
                    }
                    memcpy(&want, &acc, 4);
                    if (dtype != EPD_DTYPE_FP32)
                        want = dtype == EPD_DTYPE_BF16 ? bf16_nearest(acc) : fp16_nearest(acc);
                    else if (isnan(acc))
                        want = 0x7fffffff;
                    if (got[0] != want || got[1] != want)
                        fail_msg("dtype %u weighted %u n %u: 0x%x 0x%x, want 0x%x", dtype, weighted,
                                 n, got[0], got[1], want);
                }
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_16_bit_value),
        cmocka_unit_test(test_random_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
