#include "daemon/engine/host/math.h"

#include <math.h>
#include <stddef.h>

#define BLOCK 1024u /* columns: 4 KiB of sums */

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

#if defined(__x86_64__) && defined(__GNUC__)
#define FN(name) avx2_##name
#define TARGET __attribute__((target("avx2,fma"))) OPTIMIZE
#include "daemon/engine/host/math_body.h"
#undef FN
#undef TARGET
#define FN(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))) OPTIMIZE
#include "daemon/engine/host/math_body.h"
#undef FN
#undef TARGET
#endif

typedef void sum_fn(const struct epd_token_sum *, uint32_t, uint32_t);

static sum_fn *choose(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return avx512_sum_token;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return avx2_sum_token;
#endif
    return scalar_sum_token;
}

void epd_host_sum_token(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype)
{
    static sum_fn *fn; /* every thread finds the same value: the race is harmless, and atomic */
    sum_fn *use = __atomic_load_n(&fn, __ATOMIC_RELAXED);
    if (use == NULL) {
        use = choose();
        __atomic_store_n(&fn, use, __ATOMIC_RELAXED);
    }
    use(token, hidden, dtype);
}

void epd_host_sum_token_scalar(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype)
{
    scalar_sum_token(token, hidden, dtype);
}
