/* Body of the sum, included once per instruction set by math.c with FN(name) and TARGET defined.
 * Plain C that the compiler vectorises: a block of columns is summed in an fp32 array that stays in
 * the first-level cache, row after row. Denormals are kept, nothing is contracted (-ffp-contract=off)
 * but the fmaf that the definition asks for. */

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

TARGET static void FN(accumulate)(float *restrict acc, const void *restrict row, uint32_t n,
                                  uint32_t dtype, const float *weight)
{
    const float w = weight != NULL ? *weight : 0.0f;
    if (dtype == EPD_DTYPE_FP32) {
        const float *from = row;
        if (weight != NULL)
            for (uint32_t i = 0; i < n; i++)
                acc[i] = fmaf(w, from[i], acc[i]);
        else
            for (uint32_t i = 0; i < n; i++)
                acc[i] += from[i];
    } else if (dtype == EPD_DTYPE_BF16) {
        const uint16_t *from = row;
        if (weight != NULL)
            for (uint32_t i = 0; i < n; i++)
                acc[i] = fmaf(w, FN(bf16_load)(from[i]), acc[i]);
        else
            for (uint32_t i = 0; i < n; i++)
                acc[i] += FN(bf16_load)(from[i]);
    } else {
        const uint16_t *from = row;
        if (weight != NULL)
            for (uint32_t i = 0; i < n; i++)
                acc[i] = fmaf(w, FN(fp16_load)(from[i]), acc[i]);
        else
            for (uint32_t i = 0; i < n; i++)
                acc[i] += FN(fp16_load)(from[i]);
    }
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
        uint16_t *to = out;
        for (uint32_t i = 0; i < n; i++)
            to[i] = FN(fp16_store)(acc[i]);
    }
}

TARGET static void FN(sum_token)(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype)
{
    float acc[BLOCK];
    const size_t size = epd_dtype_bytes(dtype);
    for (uint32_t at = 0; at < hidden; at += BLOCK) {
        const uint32_t n = hidden - at < BLOCK ? hidden - at : BLOCK;
        for (uint32_t i = 0; i < n; i++)
            acc[i] = 0.0f;
        for (uint32_t r = 0; r < token->n; r++)
            FN(accumulate)
            (acc, (const char *)token->rows[r] + at * size, n, dtype,
             token->weights != NULL ? &token->weights[r] : NULL);
        FN(store)((char *)token->out + at * size, acc, n, dtype);
    }
}
