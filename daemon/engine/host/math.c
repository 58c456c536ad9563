#include "daemon/engine/host/math.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#define BLOCK 1024u /* columns: 4 KiB of sums, 16 KiB of widened fp16 rows */

struct block {
    uint32_t n; /* columns in use; a multiple of 8 for 16-bit types (epd_shape_problem) */
    float acc[BLOCK] __attribute__((aligned(64)));
    float wide[4][BLOCK] __attribute__((aligned(64))); /* fp16 only */
};

/* gcc vectorises at -O3; clang does at -O2 and knows no such attribute. */
#ifdef __clang__
#define OPTIMIZE
#else
#define OPTIMIZE __attribute__((optimize("O3")))
#endif

#define FN(name) scalar_##name
#define TARGET
#include "daemon/engine/host/math_body.h"
#undef FN
#undef TARGET

#ifdef X86
/* The conversions of F16C are exact whatever MXCSR says, denormals included; only the NaN is ours.
 */
__attribute__((target("avx2,f16c"))) static inline void widen_f16c(float *to, const uint16_t *from,
                                                                   uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
}

__attribute__((target("avx2,f16c"))) static inline void narrow_f16c(uint16_t *to, const float *from,
                                                                    uint32_t n)
{
    const __m128i nan = _mm_set1_epi16(0x7fff);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 f = _mm256_loadu_ps(from + i);
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
        const __m128i mask =
            _mm_packs_epi32(_mm256_castsi256_si128(is_nan), _mm256_extracti128_si256(is_nan, 1));
        const __m128i half = _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(to + i), _mm_blendv_epi8(half, nan, mask));
    }
}

#define WIDEN widen_f16c
#define NARROW narrow_f16c
#define FN(name) avx2_##name
#define TARGET __attribute__((target("avx2,fma,f16c"))) OPTIMIZE
#include "daemon/engine/host/math_body.h"
#undef FN
#undef TARGET
#define FN(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c"))) OPTIMIZE
#include "daemon/engine/host/math_body.h"
#undef FN
#undef TARGET

static bool has_avx2(void)
{
    unsigned a, b, c, d; /* __builtin_cpu_supports does not know f16c in every compiler */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static bool has_any(void)
{
    return true;
}

/* Fastest first. */
static const struct {
    struct epd_host_sum_form form;
    bool (*has)(void);
} g_forms[] = {
#ifdef X86
    {{"avx512", avx512_sum_token}, has_avx512},
    {{"avx2", avx2_sum_token}, has_avx2},
#endif
    {{"scalar", scalar_sum_token}, has_any},
};

const struct epd_host_sum_form *epd_host_sum_form(uint32_t index)
{
    for (size_t i = 0; i < sizeof(g_forms) / sizeof(g_forms[0]); i++)
        if (g_forms[i].has() && index-- == 0)
            return &g_forms[i].form;
    return NULL;
}

void epd_host_sum_token(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype)
{
    static epd_host_sum_fn *fn; /* every thread finds the same: the race is harmless, and atomic */
    epd_host_sum_fn *use = __atomic_load_n(&fn, __ATOMIC_RELAXED);
    if (use == NULL) {
        use = epd_host_sum_form(0)->sum;
        __atomic_store_n(&fn, use, __ATOMIC_RELAXED);
    }
    use(token, hidden, dtype);
}
