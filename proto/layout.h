/* Arithmetic that the client, the host engine and the CUDA kernels share: shapes, slot layout and
 * word packing. Inline functions only; compiles as C11 and as CUDA C++17. No allocation, no I/O.
 * Symbols: R ranks, E experts, L = E / R local experts, B max tokens a rank, b tokens this time,
 * K top-k, H hidden elements. */
#ifndef EPD_PROTO_LAYOUT_H
#define EPD_PROTO_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EPD_HD __host__ __device__ static inline
#else
#define EPD_HD static inline
#endif

#define EPD_MAX_RANKS 64u
#define EPD_MAX_EXPERTS 1024u
#define EPD_MAX_TOPK 32u
#define EPD_MAX_TOKENS 4096u
#define EPD_MAX_HIDDEN_BYTES (64u * 1024u)
#define EPD_MAX_DEVICES 16u

enum epd_dtype { EPD_DTYPE_BF16 = 1, EPD_DTYPE_FP16 = 2, EPD_DTYPE_FP32 = 3 };
enum epd_mode { EPD_MODE_LL = 1, EPD_MODE_HT = 2 };
enum epd_layout {
    EPD_LAYOUT_EXPERT_MAJOR = 1, /* LL: recv [L, R*B, H] */
    EPD_LAYOUT_RANK_MAJOR = 2,   /* LL: recv [R, B, H] */
    EPD_LAYOUT_FLAT = 3          /* HT: recv [N, H] (not built yet) */
};
enum epd_ids_type { EPD_IDS_INT32 = 1, EPD_IDS_INT64 = 2 };

/* The shape of a group; every field > 0. Validated once by the supervisor (epd_shape_problem). */
struct epd_shape {
    uint32_t ranks;      /* R */
    uint32_t experts;    /* E, E % R == 0 */
    uint32_t max_tokens; /* B */
    uint32_t topk;       /* K */
    uint32_t hidden;     /* H, in elements; H * element size is a multiple of 16 */
    uint32_t dtype;      /* enum epd_dtype */
    uint32_t mode;       /* enum epd_mode */
    uint32_t layout;     /* enum epd_layout */
};

EPD_HD uint32_t epd_dtype_bytes(uint32_t dtype)
{
    return dtype == EPD_DTYPE_FP32 ? 4u : 2u;
}
EPD_HD uint32_t epd_ids_bytes(uint32_t ids_type)
{
    return ids_type == EPD_IDS_INT64 ? 8u : 4u;
}
EPD_HD uint32_t epd_local_experts(const struct epd_shape *s)
{
    return s->experts / s->ranks;
}
EPD_HD uint32_t epd_expert_rank(const struct epd_shape *s, uint32_t expert)
{
    return expert / epd_local_experts(s);
}
EPD_HD uint32_t epd_row_bytes(const struct epd_shape *s)
{
    return s->hidden * epd_dtype_bytes(s->dtype);
}
/* Rows in one receive area of a seat: L*R*B expert-major, R*B rank-major. */
EPD_HD uint64_t epd_recv_rows(const struct epd_shape *s)
{
    uint64_t rb = (uint64_t)s->ranks * s->max_tokens;
    return s->layout == EPD_LAYOUT_EXPERT_MAJOR ? rb * epd_local_experts(s) : rb;
}
/* Row of expert-major: local expert le, begin = rows of lower source ranks, i-th row of source. */
EPD_HD uint64_t epd_row_expert_major(const struct epd_shape *s, uint32_t le, uint32_t begin,
                                     uint32_t i)
{
    return (uint64_t)le * s->ranks * s->max_tokens + begin + i;
}
/* Row of rank-major: i-th row from source rank src. */
EPD_HD uint64_t epd_row_rank_major(const struct epd_shape *s, uint32_t src, uint32_t i)
{
    return (uint64_t)src * s->max_tokens + i;
}
/* Elements of the counts output: [L] expert-major, [R] rank-major; int32. */
EPD_HD uint32_t epd_counts_len(const struct epd_shape *s)
{
    return s->layout == EPD_LAYOUT_EXPERT_MAJOR ? epd_local_experts(s) : s->ranks;
}

/* NULL when the shape is valid, else a static text naming the first bad field and the rule. */
EPD_HD const char *epd_shape_problem(const struct epd_shape *s)
{
    if (s->ranks < 1 || s->ranks > EPD_MAX_RANKS)
        return "ranks must be 1..64";
    if (s->experts < 1 || s->experts > EPD_MAX_EXPERTS)
        return "experts must be 1..1024";
    if (s->experts % s->ranks != 0)
        return "experts must be a multiple of ranks";
    if (s->max_tokens < 1 || s->max_tokens > EPD_MAX_TOKENS)
        return "max_tokens must be 1..4096";
    if (s->topk < 1 || s->topk > EPD_MAX_TOPK)
        return "topk must be 1..32";
    if (s->dtype < EPD_DTYPE_BF16 || s->dtype > EPD_DTYPE_FP32)
        return "dtype must be bf16, fp16 or fp32";
    if (s->hidden < 1 || s->hidden > EPD_MAX_HIDDEN_BYTES / epd_dtype_bytes(s->dtype))
        return "hidden must be at least 1 and a row at most 65536 bytes";
    if (epd_row_bytes(s) % 16u != 0)
        return "hidden must be a multiple of 16 bytes";
    if (s->mode != EPD_MODE_LL)
        return "mode must be ll (ht is not supported yet)";
    if (s->layout != EPD_LAYOUT_EXPERT_MAJOR && s->layout != EPD_LAYOUT_RANK_MAJOR)
        return "layout must be expert or rank in mode ll";
    return NULL;
}

/* Hash of everything that ranks must agree on in one op (not b): FNV-1a over the values. */
EPD_HD uint32_t epd_shape_hash(const struct epd_shape *s, uint32_t kind)
{
    const uint32_t v[] = {s->ranks, s->experts, s->max_tokens, s->topk, s->hidden,
                          s->dtype, s->mode,    s->layout,     kind};
    uint32_t h = 2166136261u;
    for (unsigned i = 0; i < sizeof(v) / sizeof(v[0]); i++)
        h = (h ^ v[i]) * 16777619u;
    return h;
}

/* Control word: generation:12 | epoch:30 | count:22, compared for equality with the expected
 * generation and epoch. A group re-arms before its epoch reaches 2^30. Word 0 is never valid:
 * generations start at 1 and epd_word_generation never yields 0. */
#define EPD_WORD_COUNT_BITS 22u
#define EPD_WORD_EPOCH_BITS 30u
#define EPD_WORD_COUNT_MASK ((1u << EPD_WORD_COUNT_BITS) - 1u)
#define EPD_WORD_EPOCH_LIMIT (1u << EPD_WORD_EPOCH_BITS)

/* 12-bit image of a group generation (1, 2, ...): 1..4095. */
EPD_HD uint32_t epd_word_generation(uint32_t generation)
{
    return (generation - 1u) % 4095u + 1u;
}
EPD_HD uint64_t epd_word_pack(uint32_t generation, uint64_t epoch, uint32_t count)
{
    return ((uint64_t)epd_word_generation(generation)
            << (EPD_WORD_EPOCH_BITS + EPD_WORD_COUNT_BITS)) |
           ((epoch & (EPD_WORD_EPOCH_LIMIT - 1u)) << EPD_WORD_COUNT_BITS) |
           (count & EPD_WORD_COUNT_MASK);
}
EPD_HD bool epd_word_is(uint64_t word, uint32_t generation, uint64_t epoch)
{
    return (word >> EPD_WORD_COUNT_BITS) ==
           (epd_word_pack(generation, epoch, 0) >> EPD_WORD_COUNT_BITS);
}
EPD_HD uint32_t epd_word_count(uint64_t word)
{
    return (uint32_t)(word & EPD_WORD_COUNT_MASK);
}

/* Tokens a task copies: clamp(tokens / workers, 1, 4) (reference measurement: task size). */
EPD_HD uint32_t epd_task_tokens(uint32_t tokens, uint32_t workers)
{
    uint32_t t = workers ? tokens / workers : tokens;
    return t < 1u ? 1u : t > 4u ? 4u : t;
}

#endif
