/* Body of the sum, included once per instruction set by math.c with FN(name) and TARGET defined,
 * and with WIDEN and NARROW where the set converts fp16 itself. Plain C that the compiler
 * vectorises: a block of columns is summed in an fp32 array that stays in the first-level cache,
 * row after row. Denormals are kept, nothing is contracted (-ffp-contract=off) but the fmaf that
 * the definition asks for. */

TARGET static inline float FN(bf16_load)(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    __builtin_memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even; NaN is 0x7fff. */
TARGET static inline uint16_t FN(bf16_store)(float f)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &f, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (uint16_t)rounded;
}

/* Exponent arithmetic on the integer image: exact for normal, denormal, infinite and NaN input. */
TARGET static inline float FN(fp16_load)(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = (uint32_t)(h & 0x7fffu) << 13;
    const uint32_t special = (h & 0x7c00u) == 0x7c00u ? 0x38000000u : 0u;
    uint32_t bits = body + 0x38000000u + special;
    /* Denormal: value = mantissa * 2^-24, exact in fp32 (both factors are). */
    const float tiny = (float)(int32_t)(h & 0x3ffu) * 0x1p-24f;
    uint32_t tiny_bits;
    __builtin_memcpy(&tiny_bits, &tiny, sizeof(tiny_bits));
    bits = ((h & 0x7c00u) == 0 ? tiny_bits : bits) | sign;
    float f;
    __builtin_memcpy(&f, &bits, sizeof(f));
    return f;
}

TARGET static inline uint16_t FN(fp16_store)(float f)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &f, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu;
    /* Normal range: rebias and round on the 13 bits that go. */
    const uint32_t normal = (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1u)) >> 13;
    /* Below 2^-14: adding 0.5 puts the unit of the last place at 2^-24; the FPU rounds to even. */
    float small;
    __builtin_memcpy(&small, &mag, sizeof(small));
    small += 0.5f;
    uint32_t small_bits;
    __builtin_memcpy(&small_bits, &small, sizeof(small_bits));
    uint32_t out = mag < 0x38800000u ? small_bits - 0x3f000000u : normal;
    out = mag >= 0x477ff000u ? 0x7c00u : out; /* 65520 and above round to infinity */
    return mag > 0x7f800000u ? 0x7fffu : (uint16_t)(out | sign);
}

/* fp16 is summed as fp32: one more pass over a block, and only the conversion differs by set. */
TARGET static void FN(widen)(float *restrict to, const uint16_t *restrict from, uint32_t n)
{
#ifdef WIDEN
    WIDEN(to, from, n);
#else
    for (uint32_t i = 0; i < n; i++)
        to[i] = FN(fp16_load)(from[i]);
#endif
}

TARGET static void FN(narrow)(uint16_t *restrict to, const float *restrict from, uint32_t n)
{
#ifdef NARROW
    NARROW(to, from, n);
#else
    for (uint32_t i = 0; i < n; i++)
        to[i] = FN(fp16_store)(from[i]);
#endif
}

/* Four rows a pass: the sums are loaded and stored once for them; the order of the terms stays. */
#define ADD(name, type, LOAD)                                                                      \
    TARGET static void FN(name##_four)(float *restrict acc, const void *const *rows,               \
                                       const float *w, uint32_t n)                                 \
    {                                                                                              \
        const type *restrict a = rows[0], *restrict b = rows[1];                                   \
        const type *restrict c = rows[2], *restrict d = rows[3];                                   \
        if (w == NULL) {                                                                           \
            for (uint32_t i = 0; i < n; i++)                                                       \
                acc[i] = (((acc[i] + LOAD(a[i])) + LOAD(b[i])) + LOAD(c[i])) + LOAD(d[i]);         \
            return;                                                                                \
        }                                                                                          \
        const float wa = w[0], wb = w[1], wc = w[2], wd = w[3];                                    \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            const float half = fmaf(wb, LOAD(b[i]), fmaf(wa, LOAD(a[i]), acc[i]));                 \
            acc[i] = fmaf(wd, LOAD(d[i]), fmaf(wc, LOAD(c[i]), half));                             \
        }                                                                                          \
    }                                                                                              \
    TARGET static void FN(name##_one)(float *restrict acc, const void *row, const float *w,        \
                                      uint32_t n)                                                  \
    {                                                                                              \
        const type *restrict a = row;                                                              \
        if (w == NULL) {                                                                           \
            for (uint32_t i = 0; i < n; i++)                                                       \
                acc[i] += LOAD(a[i]);                                                              \
            return;                                                                                \
        }                                                                                          \
        const float wa = w[0];                                                                     \
        for (uint32_t i = 0; i < n; i++)                                                           \
            acc[i] = fmaf(wa, LOAD(a[i]), acc[i]);                                                 \
    }
#define AS_IS(x) (x)
ADD(add_fp32, float, AS_IS)
ADD(add_bf16, uint16_t, FN(bf16_load))
#undef ADD
#undef AS_IS

/* rows: 1 or 4 of them, at the block's first column. */
TARGET static void FN(add)(struct block *b, const void *const *rows, uint32_t n_rows,
                           const float *w, uint32_t dtype)
{
    const void *wide[4] = {b->wide[0], b->wide[1], b->wide[2], b->wide[3]};
    if (dtype == EPD_DTYPE_FP16) {
        for (uint32_t r = 0; r < n_rows; r++)
            FN(widen)(b->wide[r], rows[r], b->n);
        rows = wide;
    }
    if (dtype == EPD_DTYPE_BF16)
        n_rows == 4 ? FN(add_bf16_four)(b->acc, rows, w, b->n)
                    : FN(add_bf16_one)(b->acc, rows[0], w, b->n);
    else
        n_rows == 4 ? FN(add_fp32_four)(b->acc, rows, w, b->n)
                    : FN(add_fp32_one)(b->acc, rows[0], w, b->n);
}

TARGET static void FN(store)(void *restrict out, const float *restrict acc, uint32_t n,
                             uint32_t dtype)
{
    if (dtype == EPD_DTYPE_FP32) {
        uint32_t *to = out;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bits;
            __builtin_memcpy(&bits, &acc[i], sizeof(bits));
            to[i] = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : bits;
        }
    } else if (dtype == EPD_DTYPE_BF16) {
        uint16_t *to = out;
        for (uint32_t i = 0; i < n; i++)
            to[i] = FN(bf16_store)(acc[i]);
    } else {
        FN(narrow)(out, acc, n);
    }
}

TARGET static void FN(sum_token)(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype)
{
    struct block b;
    const size_t size = epd_dtype_bytes(dtype);
    for (uint32_t at = 0; at < hidden; at += BLOCK) {
        b.n = hidden - at < BLOCK ? hidden - at : BLOCK;
        for (uint32_t i = 0; i < b.n; i++)
            b.acc[i] = 0.0f;
        for (uint32_t r = 0; r < token->n;) {
            const uint32_t step = token->n - r >= 4 ? 4 : 1;
            const void *rows[4];
            for (uint32_t k = 0; k < step; k++)
                rows[k] = (const char *)token->rows[r + k] + at * size;
            FN(add)(&b, rows, step, token->weights != NULL ? &token->weights[r] : NULL, dtype);
            r += step;
        }
        FN(store)((char *)token->out + at * size, b.acc, b.n, dtype);
    }
}
