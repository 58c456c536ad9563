/* The cases of matrix_test.c: data, in a table of their own. */
#ifndef EPD_TESTS_CONFORMANCE_MATRIX_H
#define EPD_TESTS_CONFORMANCE_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "proto/layout.h"
#include "tests/support/agent.h"
#include "tests/support/seat.h"
#include "tests/support/workload.h"

#define CONF_MAX_CASES 128u

enum conf_place {
    PLACE_DEFAULT = 0, /* the daemon's rule */
    PLACE_ROUND,       /* rank r on device r mod n */
    PLACE_BLOCK,       /* contiguous ranks on a device */
    PLACE_UNEVEN,      /* device 0 has nearly all */
};

struct conf_case {
    const char *name;
    uint32_t R, E, K, B, H;
    uint32_t dtype, layout, ids; /* of proto/layout.h */
    uint32_t devices, place, processes;
    uint32_t routing, b, values; /* tests/support/workload.h */
    uint32_t flags, sets;        /* tests/support/seat.h */
    uint32_t style, steps;       /* tests/support/agent.h */
    uint32_t depth;              /* of the ring; 0: default */
};

#define BF EPD_DTYPE_BF16
#define FP EPD_DTYPE_FP16
#define F32 EPD_DTYPE_FP32
#define EM EPD_LAYOUT_EXPERT_MAJOR
#define RM EPD_LAYOUT_RANK_MAJOR
#define I32 EPD_IDS_INT32
#define I64 EPD_IDS_INT64

/* clang-format off */
static const struct conf_case g_cases[] = {
    /* name          R   E     K   B    H                                  dev place        proc */
    /* smallest shapes and edges of each parameter */
    {"one-of-all-em",  1,  1,    1,  1,   8,   BF,  EM, I32, 1, PLACE_ROUND,   1, .steps = 3, .sets = 1, .b = B_FULL},
    {"one-of-all-rm",  1,  1,    1,  1,   8,   FP,  RM, I64, 1, PLACE_ROUND,   1, .steps = 3, .sets = 1, .b = B_FULL},
    {"row-16-bytes",   2,  4,    2,  8,   4,   F32, EM, I64, 1, PLACE_ROUND,   2, .steps = 4, .sets = 1},
    {"row-16-bytes-rm",2,  4,    2,  8,   4,   F32, RM, I32, 1, PLACE_ROUND,   2, .steps = 4, .sets = 1},
    {"h-8192-em",      2,  4,    2,  4,   8192, BF, EM, I64, 2, PLACE_ROUND,   2, .steps = 3, .sets = 1, .b = B_FULL},
    {"h-8192-rm",      2,  4,    2,  4,   8192, F32, RM, I64, 2, PLACE_ROUND,  2, .steps = 3, .sets = 1, .b = B_FULL},
    {"h-7168-fp16",    3,  6,    3,  3,   7168, FP, EM, I32, 3, PLACE_ROUND,   3, .steps = 3, .sets = 1},
    {"h-24-odd",       3,  9,    4,  7,   24,  BF,  EM, I32, 2, PLACE_BLOCK,   2, .steps = 4, .sets = 1},
    {"h-520-odd",      3,  9,    4,  7,   520, FP,  RM, I32, 2, PLACE_BLOCK,   2, .steps = 4, .sets = 1},
    {"k-1",            4,  8,    1,  9,   64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .steps = 4, .sets = 1},
    {"k-1-rm",         4,  8,    1,  9,   64,  F32, RM, I64, 2, PLACE_ROUND,   2, .steps = 4, .sets = 1},
    {"k-9",            3,  18,   9,  5,   32,  BF,  EM, I32, 3, PLACE_UNEVEN,  2, .steps = 4, .sets = 1},
    {"k-22",           4,  32,   22, 5,   40,  FP,  EM, I64, 2, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    {"k-22-rm",        4,  32,   22, 5,   40,  BF,  RM, I64, 2, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    {"k-32",           4,  64,   32, 4,   16,  BF,  EM, I32, 2, PLACE_UNEVEN,  2, .steps = 3, .sets = 1},
    {"k-32-rm",        4,  64,   32, 4,   16,  FP,  RM, I32, 2, PLACE_UNEVEN,  2, .steps = 3, .sets = 1},
    {"k-over-e",       2,  4,    8,  6,   16,  BF,  EM, I32, 1, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    {"k-over-e-rm",    2,  4,    8,  6,   16,  BF,  RM, I32, 1, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    {"b-1",            4,  8,    2,  1,   128, BF,  EM, I64, 2, PLACE_ROUND,   2, .steps = 5, .sets = 1},
    {"b-128",          2,  8,    4,  128, 64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .steps = 3, .sets = 1, .b = B_RANDOM},
    {"b-511-rm",       2,  8,    4,  511, 16,  BF,  RM, I64, 2, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    /* ranks, experts, devices, processes */
    {"r-1-e-16",       1,  16,   4,  16,  64,  BF,  EM, I64, 1, PLACE_ROUND,   1, .steps = 4, .sets = 1, .b = B_RANDOM},
    {"r-2-two-procs",  2,  16,   4,  16,  64,  FP,  EM, I64, 2, PLACE_ROUND,   2, .steps = 4, .sets = 1},
    {"r-3-uneven",     3,  12,   3,  11,  48,  F32, EM, I32, 2, PLACE_UNEVEN,  3, .steps = 4, .sets = 1},
    {"r-5",            5,  15,   4,  6,   56,  BF,  EM, I64, 3, PLACE_ROUND,   3, .steps = 4, .sets = 1},
    {"r-5-rm",         5,  15,   4,  6,   56,  FP,  RM, I64, 3, PLACE_BLOCK,   3, .steps = 4, .sets = 1},
    {"r-8-default",    8,  64,   8,  16,  128, BF,  EM, I64, 3, PLACE_DEFAULT, 4, .steps = 3, .sets = 1, .b = B_RANDOM},
    {"r-8-one-dev",    8,  64,   8,  8,   128, BF,  EM, I64, 1, PLACE_ROUND,   2, .steps = 3, .sets = 1},
    {"r-8-rm",         8,  64,   6,  16,  128, BF,  RM, I64, 3, PLACE_ROUND,   4, .steps = 3, .sets = 1, .b = B_RANDOM},
    {"r-16-l-1",       16, 16,   4,  5,   32,  BF,  EM, I32, 3, PLACE_ROUND,   4, .steps = 3, .sets = 1},
    {"r-16-rm",        16, 64,   8,  5,   32,  F32, RM, I32, 3, PLACE_UNEVEN,  4, .steps = 3, .sets = 1},
    {"r-64-l-1",       64, 64,   4,  3,   8,   BF,  EM, I32, 3, PLACE_ROUND,   4, .steps = 2, .sets = 1},
    {"r-64-e-256",     64, 256,  8,  2,   16,  FP,  EM, I64, 2, PLACE_BLOCK,   4, .steps = 2, .sets = 1},
    {"r-64-rm",        64, 128,  8,  3,   8,   BF,  RM, I64, 3, PLACE_ROUND,   4, .steps = 2, .sets = 1},
    {"e-288",          3,  288,  8,  6,   32,  BF,  EM, I64, 3, PLACE_ROUND,   3, .steps = 3, .sets = 1},
    {"e-1024",         8,  1024, 8,  4,   16,  BF,  EM, I64, 2, PLACE_ROUND,   2, .steps = 2, .sets = 1},
    {"e-1024-rm",      4,  1024, 8,  4,   16,  BF,  RM, I64, 2, PLACE_ROUND,   2, .steps = 2, .sets = 1},
    /* routings */
    {"all-to-expert-0",4,  8,    4,  9,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, ROUTE_EXPERT_0, .steps = 4, .sets = 1},
    {"all-to-0-rm",    4,  8,    4,  9,   32,  BF,  RM, I64, 2, PLACE_ROUND,   2, ROUTE_EXPERT_0, .steps = 4, .sets = 1},
    {"all-to-0-full",  8,  32,   1,  64,  64,  FP,  EM, I32, 3, PLACE_ROUND,   2, ROUTE_EXPERT_0, B_FULL, .steps = 3, .sets = 1},
    {"own-rank",       4,  16,   3,  9,   32,  F32, EM, I64, 2, PLACE_ROUND,   2, ROUTE_OWN, .steps = 4, .sets = 1},
    {"own-rank-rm",    4,  16,   3,  9,   32,  F32, RM, I64, 2, PLACE_ROUND,   2, ROUTE_OWN, .steps = 4, .sets = 1},
    {"one-sends",      5,  10,   2,  12,  32,  BF,  EM, I64, 3, PLACE_ROUND,   3, ROUTE_ONE_SENDS, B_FULL, .steps = 5, .sets = 1},
    {"one-sends-rm",   5,  10,   2,  12,  32,  BF,  RM, I64, 3, PLACE_ROUND,   3, ROUTE_ONE_SENDS, B_FULL, .steps = 5, .sets = 1},
    {"some-none",      4,  16,   6,  9,   32,  FP,  EM, I32, 2, PLACE_ROUND,   2, ROUTE_SOME_NONE, .steps = 4, .sets = 1},
    {"some-none-rm",   4,  16,   6,  9,   32,  FP,  RM, I32, 2, PLACE_ROUND,   2, ROUTE_SOME_NONE, .steps = 4, .sets = 1},
    {"row-none",       4,  16,   6,  9,   32,  BF,  EM, I64, 2, PLACE_UNEVEN,  2, ROUTE_ROW_NONE, .steps = 4, .sets = 1},
    {"row-none-rm",    4,  16,   6,  9,   32,  BF,  RM, I64, 2, PLACE_UNEVEN,  2, ROUTE_ROW_NONE, .steps = 4, .sets = 1},
    {"duplicates",     4,  16,   8,  9,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, ROUTE_DUPLICATES, .steps = 4, .sets = 1},
    {"duplicates-rm",  4,  16,   8,  9,   32,  F32, RM, I32, 2, PLACE_ROUND,   2, ROUTE_DUPLICATES, .steps = 4, .sets = 1},
    {"zipf",           8,  64,   8,  20,  64,  BF,  EM, I64, 3, PLACE_ROUND,   4, ROUTE_ZIPF, B_RANDOM, .steps = 3, .sets = 1},
    {"zipf-rm",        8,  64,   8,  20,  64,  BF,  RM, I64, 3, PLACE_BLOCK,   4, ROUTE_ZIPF, B_RANDOM, .steps = 3, .sets = 1},
    {"k-hot",          8,  64,   6,  16,  64,  BF,  EM, I64, 3, PLACE_ROUND,   4, ROUTE_K_HOT, B_FULL, .steps = 3, .sets = 1},
    {"nobody-sends",   4,  8,    2,  8,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, .b = B_ZERO, .steps = 4, .sets = 1},
    {"nobody-sends-rm",4,  8,    2,  8,   32,  BF,  RM, I64, 2, PLACE_ROUND,   2, .b = B_ZERO, .steps = 4, .sets = 1},
    {"b-less-one",     4,  8,    2,  8,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, .b = B_LESS_ONE, .steps = 4, .sets = 1},
    /* values: NaN payloads, infinities, denormals, signed zeros */
    {"special-bf16",   4,  16,   4,  16,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .values = VALUES_SPECIAL, .steps = 4, .sets = 1},
    {"special-fp16",   4,  16,   4,  16,  64,  FP,  EM, I64, 2, PLACE_ROUND,   2, .values = VALUES_SPECIAL, .steps = 4, .sets = 1},
    {"special-fp32",   4,  16,   4,  16,  64,  F32, EM, I64, 2, PLACE_ROUND,   2, .values = VALUES_SPECIAL, .steps = 4, .sets = 1},
    {"special-bf16-rm",4,  16,   4,  16,  64,  BF,  RM, I64, 2, PLACE_ROUND,   2, .values = VALUES_SPECIAL, .steps = 4, .sets = 1},
    {"special-fp32-rm",4,  16,   4,  16,  64,  F32, RM, I64, 2, PLACE_ROUND,   2, .values = VALUES_SPECIAL, .steps = 4, .sets = 1},
    /* memory */
    {"strided",        3,  9,    3,  7,   40,  BF,  EM, I32, 2, PLACE_ROUND,   2, .flags = SEAT_STRIDED, .steps = 4, .sets = 2},
    {"strided-rm",     3,  9,    3,  7,   40,  F32, RM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_STRIDED, .steps = 4, .sets = 2},
    {"imported",       4,  16,   4,  12,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_IMPORT, .steps = 4, .sets = 1},
    {"imported-rm",    4,  16,   4,  12,  64,  FP,  RM, I32, 2, PLACE_ROUND,   2, .flags = SEAT_IMPORT | SEAT_STRIDED | SEAT_NOTIFY | SEAT_B_INDIRECT, .steps = 4, .sets = 2},
    {"in-place",       4,  16,   4,  12,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_IN_PLACE, .steps = 5, .sets = 1},
    {"in-place-rm",    4,  16,   4,  12,  64,  BF,  RM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_IN_PLACE, .steps = 5, .sets = 1},
    {"bare",           4,  16,   4,  12,  64,  FP,  EM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_BARE, .steps = 4, .sets = 1},
    {"notify",         3,  6,    3,  8,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_NOTIFY, .steps = 6, .sets = 1},
    {"b-indirect",     3,  6,    3,  8,   32,  BF,  EM, I64, 2, PLACE_ROUND,   2, .flags = SEAT_B_INDIRECT, .steps = 6, .sets = 1, .b = B_RANDOM},
    {"three-sets",     3,  6,    3,  8,   32,  BF,  RM, I64, 2, PLACE_ROUND,   2, .steps = 7, .sets = 3},
    /* styles */
    {"pipelined",      4,  16,   4,  16,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .style = RUN_PIPELINED, .steps = 12, .sets = 2},
    {"pipelined-rm",   4,  16,   4,  16,  64,  BF,  RM, I64, 3, PLACE_ROUND,   3, .style = RUN_PIPELINED, .steps = 12, .sets = 2},
    {"pipelined-held", 4,  16,   4,  16,  64,  FP,  EM, I64, 2, PLACE_ROUND,   2, .style = RUN_PIPELINED, .steps = 12, .sets = 1, .flags = SEAT_IN_PLACE},
    {"held-large",     3,  6,    3,  48,  1024, BF, RM, I64, 3, PLACE_ROUND,   3, .style = RUN_PIPELINED, .steps = 8, .sets = 1, .b = B_FULL, .flags = SEAT_IN_PLACE},
    {"held-large-em",  3,  6,    3,  48,  1024, FP, EM, I64, 3, PLACE_ROUND,   3, .style = RUN_PIPELINED, .steps = 8, .sets = 1, .b = B_FULL, .flags = SEAT_IN_PLACE},
    {"two-in-flight",  4,  16,   4,  16,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .style = RUN_TWO, .steps = 8, .sets = 2},
    {"two-in-flight-rm",4, 16,   4,  16,  64,  F32, RM, I64, 2, PLACE_ROUND,   2, .style = RUN_TWO, .steps = 8, .sets = 2},
    {"depth-2",        4,  16,   4,  16,  64,  BF,  EM, I64, 3, PLACE_UNEVEN,  2, .style = RUN_DEPTH2, .steps = 12, .sets = 2},
    {"depth-2-rm",     4,  16,   4,  16,  64,  BF,  RM, I64, 3, PLACE_UNEVEN,  2, .style = RUN_DEPTH2, .steps = 12, .sets = 2},
    {"staged",         4,  16,   4,  16,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .style = RUN_STAGED, .steps = 6, .sets = 1},
    {"released",       4,  16,   4,  16,  64,  BF,  EM, I64, 2, PLACE_ROUND,   2, .style = RUN_RELEASE, .steps = 8, .sets = 1},
    {"released-rm",    4,  16,   4,  16,  64,  BF,  RM, I64, 2, PLACE_ROUND,   2, .style = RUN_RELEASE, .steps = 8, .sets = 2},
    {"actors",         6,  24,   4,  16,  64,  BF,  EM, I64, 3, PLACE_ROUND,   3, .style = RUN_ACTORS, .steps = 12, .sets = 2},
    {"actors-rm",      6,  24,   4,  16,  64,  FP,  RM, I64, 3, PLACE_ROUND,   3, .style = RUN_ACTORS, .steps = 12, .sets = 2},
    {"small-ring",     3,  6,    2,  4,   16,  BF,  EM, I64, 2, PLACE_ROUND,   3, .style = RUN_DEPTH2, .steps = 60, .sets = 2, .depth = 4},
    {"many-steps",     3,  6,    2,  4,   16,  BF,  EM, I64, 2, PLACE_ROUND,   3, .style = RUN_PIPELINED, .steps = 150, .sets = 2},
};
/* clang-format on */

static inline size_t conf_cases(const struct conf_case **out)
{
    *out = g_cases;
    return sizeof(g_cases) / sizeof(g_cases[0]);
}

#endif
