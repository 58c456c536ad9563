/* Every rule of every array, one violation at a time, from a descriptor that is good. */
#include "daemon/core/opdesc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/util.h"
#include "proto/ring.h"

#define BIG (1ull << 40)

static const struct epd_shape g_expert = {.ranks = 4,
                                          .experts = 16,
                                          .max_tokens = 8,
                                          .topk = 2,
                                          .hidden = 64,
                                          .dtype = EPD_DTYPE_BF16,
                                          .mode = EPD_MODE_LL,
                                          .layout = EPD_LAYOUT_EXPERT_MAJOR};
static const struct epd_shape g_rank = {.ranks = 4,
                                        .experts = 16,
                                        .max_tokens = 8,
                                        .topk = 2,
                                        .hidden = 64,
                                        .dtype = EPD_DTYPE_BF16,
                                        .mode = EPD_MODE_LL,
                                        .layout = EPD_LAYOUT_RANK_MAJOR};

static struct epd_opdesc_array array(uint64_t size)
{
    return (struct epd_opdesc_array){.present = true, .chunk = 7, .base = 4096, .size = size};
}

/* Exactly as large as it must be. */
static struct epd_opdesc good_dispatch(const struct epd_shape *s, uint32_t sets)
{
    const uint64_t rows = epd_recv_rows(s) * sets;
    struct epd_opdesc d = {.kind = EPD_OP_DISPATCH, .ids_type = EPD_IDS_INT64, .sets = sets};
    d.array[EPD_ARRAY_X] = array(epd_row_bytes(s));
    d.array[EPD_ARRAY_IDS] = array(s->topk * 8);
    d.array[EPD_ARRAY_RECV] = array(rows * epd_row_bytes(s));
    d.array[EPD_ARRAY_COUNTS] = array(epd_counts_len(s) * 4 * sets);
    d.array[EPD_ARRAY_SRC] = array(rows * 4);
    d.array[EPD_ARRAY_CONTROL] = array(8);
    if (s->layout == EPD_LAYOUT_EXPERT_MAJOR) {
        d.array[EPD_ARRAY_RANGES] = array(s->experts * 8 * sets);
        return d;
    }
    d.array[EPD_ARRAY_WEIGHTS] = array(s->topk * 4);
    d.array[EPD_ARRAY_RECV_IDS] = array(rows * s->topk * 4);
    d.array[EPD_ARRAY_RECV_WEIGHTS] = array(rows * s->topk * 4);
    return d;
}

static struct epd_opdesc good_combine(const struct epd_shape *s, uint32_t sets)
{
    struct epd_opdesc d = {.kind = EPD_OP_COMBINE, .sets = sets};
    d.array[EPD_ARRAY_ROWS] = array(epd_recv_rows(s) * sets * epd_row_bytes(s));
    d.array[EPD_ARRAY_OUT] = array(epd_row_bytes(s));
    if (s->layout == EPD_LAYOUT_EXPERT_MAJOR)
        d.array[EPD_ARRAY_WEIGHTS] = array(s->topk * 4);
    return d;
}

static void passes(const struct epd_shape *s, const struct epd_opdesc *d)
{
    struct epd_array_ref refs[EPD_ARRAY_ROLES];
    struct epd_error err = {.message = ""};
    if (epd_opdesc_check(s, d, refs, &err) != EPD_OK)
        fail_msg("refused: %s", err.message);
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++)
        assert_int_equal(refs[i].stride != 0, d->array[i].present);
}

static void refused(const struct epd_shape *s, const struct epd_opdesc *d, const char *name,
                    const char *rule)
{
    struct epd_array_ref refs[EPD_ARRAY_ROLES];
    struct epd_error err = {.message = ""};
    memset(refs, 0xa5, sizeof(refs));
    assert_int_equal(epd_opdesc_check(s, d, refs, &err), EPD_EINVAL);
    if (strncmp(err.message, name, strlen(name)) != 0 || strstr(err.message, rule) == NULL)
        fail_msg("expected %s and %s in: %s", name, rule, err.message);
    assert_int_equal(((unsigned char *)refs)[0], 0xa5); /* set only on success */
}

static void exact_sizes(void **state)
{
    static const char *const dispatch[EPD_ARRAY_ROLES] = {
        "x",      "ids", "weights",  "recv",         "counts",
        "ranges", "src", "recv_ids", "recv_weights", "control"};
    const struct epd_shape *const shapes[] = {&g_expert, &g_rank};
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t sets = 1; sets <= 3; sets++) {
            const struct epd_opdesc d = good_dispatch(shapes[i], sets);
            const struct epd_opdesc c = good_combine(shapes[i], sets);
            passes(shapes[i], &d);
            passes(shapes[i], &c);
            for (unsigned role = 0; role < EPD_ARRAY_ROLES; role++) {
                struct epd_opdesc bad = d;
                if (!bad.array[role].present)
                    continue;
                bad.array[role].size--;
                refused(shapes[i], &bad, dispatch[role], "needs");
                bad = d;
                bad.array[role].size = BIG; /* bytes says less than the buffer has */
                bad.array[role].bytes = d.array[role].size - 1;
                refused(shapes[i], &bad, dispatch[role], "needs");
            }
        }
}

static void presence(void **state)
{
    struct epd_opdesc d = good_dispatch(&g_expert, 1);
    (void)state;
    d.array[EPD_ARRAY_RANGES].present = d.array[EPD_ARRAY_SRC].present = false;
    d.array[EPD_ARRAY_CONTROL].present = false;
    passes(&g_expert, &d);
    d.array[EPD_ARRAY_RECV_IDS] = array(BIG);
    refused(&g_expert, &d, "recv_ids", "no such array");
    d = good_dispatch(&g_expert, 1);
    d.array[EPD_ARRAY_WEIGHTS] = array(BIG);
    refused(&g_expert, &d, "weights", "no such array");
    d = good_dispatch(&g_rank, 1);
    d.array[EPD_ARRAY_RANGES] = array(BIG);
    refused(&g_rank, &d, "ranges", "no such array");
    d = good_dispatch(&g_rank, 1);
    d.array[EPD_ARRAY_WEIGHTS].present = false;
    refused(&g_rank, &d, "weights", "missing");
    d = good_combine(&g_expert, 1);
    d.array[EPD_ARRAY_OUT].present = false;
    refused(&g_expert, &d, "out", "missing");
    d = good_combine(&g_expert, 1);
    d.array[EPD_ARRAY_IDS] = array(BIG);
    refused(&g_expert, &d, "ids", "no such array");
}

static void places(void **state)
{
    static const struct {
        unsigned role;
        const char *name;
    } own[] = {{EPD_ARRAY_RECV, "recv"},
               {EPD_ARRAY_COUNTS, "counts"},
               {EPD_ARRAY_SRC, "src"},
               {EPD_ARRAY_RECV_IDS, "recv_ids"},
               {EPD_ARRAY_RECV_WEIGHTS, "recv_weights"}};
    struct epd_opdesc d;
    (void)state;
    for (size_t i = 0; i < EPD_ARRAY_LEN(own); i++) {
        d = good_dispatch(&g_rank, 1);
        d.array[own[i].role].import = true;
        refused(&g_rank, &d, own[i].name, "imported");
    }
    d = good_dispatch(&g_rank, 1);
    d.array[EPD_ARRAY_X].import = d.array[EPD_ARRAY_IDS].import = true;
    d.array[EPD_ARRAY_WEIGHTS].import = d.array[EPD_ARRAY_CONTROL].import = true;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_IDS].device = 1;
    refused(&g_rank, &d, "ids", "device 1");
    d = good_combine(&g_rank, 1);
    d.array[EPD_ARRAY_ROWS].import = d.array[EPD_ARRAY_OUT].import = true;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_ROWS].offset = d.array[EPD_ARRAY_ROWS].size;
    refused(&g_rank, &d, "rows", "outside");
    d.array[EPD_ARRAY_ROWS].offset = 16;
    d.array[EPD_ARRAY_ROWS].bytes = UINT64_MAX;
    refused(&g_rank, &d, "rows", "leave its buffer");
}

static void alignment_and_strides(void **state)
{
    struct epd_opdesc d = good_dispatch(&g_rank, 1);
    const uint64_t row = epd_row_bytes(&g_rank);
    (void)state;
    for (unsigned i = 0; i < EPD_ARRAY_ROLES; i++)
        d.array[i].size = d.array[i].present ? BIG : 0;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_X].offset = 8;
    refused(&g_rank, &d, "x", "multiple of 16");
    d.array[EPD_ARRAY_X].offset = 16;
    d.array[EPD_ARRAY_IDS].offset = 4;
    refused(&g_rank, &d, "ids", "multiple of 8");
    d.ids_type = EPD_IDS_INT32;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_CONTROL].offset = 4;
    refused(&g_rank, &d, "control", "multiple of 8");
    d.array[EPD_ARRAY_CONTROL].offset = 0;
    d.array[EPD_ARRAY_RECV].stride = row - 16;
    refused(&g_rank, &d, "recv", "at least a row");
    d.array[EPD_ARRAY_RECV].stride = row + 8;
    refused(&g_rank, &d, "recv", "multiple of 16");
    d.array[EPD_ARRAY_RECV].stride = row + 16;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_RECV].stride = 1ull << 33;
    refused(&g_rank, &d, "recv", "stride");
    d.array[EPD_ARRAY_RECV].stride = 0;
    d.array[EPD_ARRAY_IDS].stride = g_rank.topk * 4 + 2;
    refused(&g_rank, &d, "ids", "multiple of 4");
    d.array[EPD_ARRAY_IDS].stride = g_rank.topk * 4 + 4;
    passes(&g_rank, &d);
    d.array[EPD_ARRAY_RECV_IDS].stride = g_rank.topk * 4 + 4;
    refused(&g_rank, &d, "recv_ids", "dense");
    d.array[EPD_ARRAY_RECV_IDS].stride = g_rank.topk * 4;
    passes(&g_rank, &d);
}

static void heads(void **state)
{
    struct epd_opdesc d = good_dispatch(&g_expert, 1);
    (void)state;
    d.kind = EPD_OP_RELEASE;
    refused(&g_expert, &d, "kind", "dispatch");
    d = good_dispatch(&g_expert, 1);
    d.sets = 0;
    refused(&g_expert, &d, "sets", "1..");
    d.sets = EPD_OPDESC_SETS_MAX + 1;
    refused(&g_expert, &d, "sets", "1..");
    d = good_dispatch(&g_expert, 1);
    d.ids_type = 3;
    refused(&g_expert, &d, "ids_type", "int32");
}

/* The largest numbers that pass one by one do not overflow together. */
static void no_overflow(void **state)
{
    const struct epd_shape s = {.ranks = 64,
                                .experts = 1024,
                                .max_tokens = 4096,
                                .topk = 32,
                                .hidden = 16384,
                                .dtype = EPD_DTYPE_FP32,
                                .mode = EPD_MODE_LL,
                                .layout = EPD_LAYOUT_EXPERT_MAJOR};
    struct epd_opdesc d = good_dispatch(&s, EPD_OPDESC_SETS_MAX);
    (void)state;
    assert_null(epd_shape_problem(&s));
    passes(&s, &d);
    d.array[EPD_ARRAY_RECV].stride = UINT32_MAX & ~15u;
    refused(&s, &d, "recv", "needs");
    d.array[EPD_ARRAY_RECV].size = UINT64_MAX - 8191;
    refused(&s, &d, "recv", "needs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sizes), cmocka_unit_test(presence),
        cmocka_unit_test(places),      cmocka_unit_test(alignment_and_strides),
        cmocka_unit_test(heads),       cmocka_unit_test(no_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
