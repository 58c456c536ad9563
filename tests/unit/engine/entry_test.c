/* What one entry or descriptor asks for: checked before it is used, and meant exactly. */
#include "tests/unit/engine/solo.h"

static void bad_combines(void **state)
{
    (void)state;
    const struct {
        struct epd_entry e;
        int status, field;
    } cases[] = {
        {{.out_row = B - 2}, EPD_EINVAL, EPD_FIELD_OUT_ROW},
        {{.out_row = UINT64_MAX}, EPD_EINVAL, EPD_FIELD_OUT_ROW},
        {{.in_row = B - 2}, EPD_EINVAL, EPD_FIELD_IN_ROW},
        {{.in_row = UINT64_MAX}, EPD_EINVAL, EPD_FIELD_IN_ROW},
        {{.set = 2}, EPD_EINVAL, EPD_FIELD_SET},
        {{.epoch = 1}, EPD_EORDER, EPD_FIELD_EPOCH},
        {{.desc_index = EPD_MAX_DESCS}, EPD_EINVAL, EPD_FIELD_DESC},
        {{.desc_index = UINT32_MAX}, EPD_EINVAL, EPD_FIELD_DESC},
        {{.desc_index = 2}, EPD_ESTALE, EPD_FIELD_DESC},
        {{.desc_index = 1, .desc_generation = 2}, EPD_ESTALE, EPD_FIELD_DESC},
        {{.flags = EPD_ENTRY_NOTIFY}, EPD_EINVAL, EPD_FIELD_NOTIFY_OFFSET}, /* no control array */
    };
    dispatch(0, 0, 3);
    dispatch(1, 0, 0);
    run();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct epd_entry e = cases[i].e;
        e.kind = EPD_OP_COMBINE;
        submit(0, e);
        run();
        const struct epd_completion *c = next(0);
        if (c == NULL || c->status != cases[i].status || c->field != cases[i].field)
            fail_msg("case %zu: status %d field %u", i, c ? c->status : 0, c ? c->field : 0);
    }
    submit(0, (struct epd_entry){.kind = EPD_OP_COMBINE, .in_row = B - 3, .out_row = B - 3});
    run();
    (void)expect(0, EPD_OK); /* the last rows that fit */
}

/* A token's weights are those of its own selections, from in_row on. */
static void weights_by_selection(void **state)
{
    (void)state;
    const uint32_t first = 5;
    struct mem *m = g.mem[0];
    m->ids[1][0] = -1;
    m->ids[2][1] = m->ids[2][0];
    dispatch(0, 0, 3);
    dispatch(1, 0, 0);
    run();
    (void)expect(0, EPD_OK);
    m->weights[first][0] = 2, m->weights[first][1] = 3;
    m->weights[first + 1][0] = 500, m->weights[first + 1][1] = 7;
    m->weights[first + 2][0] = 11, m->weights[first + 2][1] = 13;
    submit(0, (struct epd_entry){.kind = EPD_OP_COMBINE, .in_row = first, .out_row = 1});
    run();
    (void)expect(0, EPD_OK);
    assert_true(m->out[1][0] == m->x[0][0] * 5);
    assert_true(m->out[2][0] == m->x[1][0] * 7);
    assert_true(m->out[3][0] == m->x[2][0] * 24);
    assert_true(m->out[0][0] == 0 && m->out[4][0] == 0);
}

/* Both ranks send to expert 1 (rank 0) as well: counts, ranges and rows of both sources. */
static void ranges_by_source(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 4; t++)
        g.mem[1]->ids[t][0] = 1;
    dispatch(0, 0, 3);
    dispatch(1, 0, 4);
    run();
    assert_int_equal(expect(0, EPD_OK)->rows, 3 + 3 + 4);
    assert_int_equal(expect(1, EPD_OK)->rows, 4);
    const struct mem *m = g.mem[0];
    assert_int_equal(m->counts[0][0], 3);
    assert_int_equal(m->counts[0][1], 7);
    assert_int_equal(m->ranges[0][1][0][0], 0);
    assert_int_equal(m->ranges[0][1][0][1], 3);
    assert_int_equal(m->ranges[0][1][1][0], 3);
    assert_int_equal(m->ranges[0][1][1][1], 4);
    assert_int_equal(m->ranges[0][0][1][0], 3);
    assert_int_equal(m->ranges[0][0][1][1], 0);
    for (uint32_t i = 0; i < 7; i++)
        assert_true(m->recv[0][R * B + i][0] == (i < 3 ? m->x[i][0] : g.mem[1]->x[i - 3][0]));
    assert_true(m->recv[0][R * B + 7][0] == 0);
    assert_int_equal(m->counts[1][0], 0); /* the other set's */
}

static void bad_descriptors(void **state)
{
    (void)state;
    const uint64_t bytes = epd_chunks_find(g.engine.chunks, 100)->bytes;
    struct epd_msg_desc d = dispatch_desc(0);
    d.desc_index = 3;
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_OK);
    d.array[EPD_ARRAY_X].offset = bytes - 16;
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_EINVAL);
    d.array[EPD_ARRAY_X].offset = UINT64_MAX - 15;
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_EINVAL);
    d.array[EPD_ARRAY_X] = REF(0, x);
    d.array[EPD_ARRAY_RECV].bytes -= H * sizeof(float); /* one row short */
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_EINVAL);
    d.array[EPD_ARRAY_RECV].bytes += H * sizeof(float);
    d.array[EPD_ARRAY_COUNTS].bytes -= 4;
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_EINVAL);
    d.array[EPD_ARRAY_COUNTS].bytes += 4;
    d.desc_index = EPD_MAX_DESCS;
    assert_int_equal(epd_groups_desc_set(&g.engine, &d, NULL), EPD_EINVAL);
}

/* A peer engine with a bug: what it publishes is checked before a row is written or read. */
static void credit_outside_its_chunk(void **state)
{
    (void)state;
    const uint64_t bytes = epd_chunks_find(g.engine.chunks, 101)->bytes;
    struct epd_array_map *recv = &g.group->seat[1]->desc[0].array[EPD_ARRAY_RECV];
    recv->offset = bytes - 64;
    g.mem[0]->ids[0][0] = 2;
    dispatch(0, 0, 1);
    dispatch(1, 0, 0);
    run();
    assert_true(g_reports > 0);
    assert_int_equal(g_report.status, EPD_EINTERNAL);
    assert_int_equal(g_report.rank, 1);
    expect_none(0);
}

static void lent_rows_outside_their_chunk(void **state)
{
    (void)state;
    g.mem[0]->ids[0][0] = 2;
    dispatch(0, 0, 1);
    dispatch(1, 0, 0);
    run();
    (void)expect(0, EPD_OK);
    struct epd_array_map *rows = &g.group->seat[1]->desc[1].array[EPD_ARRAY_ROWS];
    rows->offset = epd_chunks_find(g.engine.chunks, 101)->bytes - 64;
    combine(0, 0);
    combine(1, 0);
    run();
    assert_true(g_reports > 0);
    assert_int_equal(g_report.status, EPD_EINTERNAL);
    assert_int_equal(g_report.rank, 1);
    expect_none(0);
}

#define SOLO(test) cmocka_unit_test_setup_teardown(test, solo_begin, solo_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SOLO(bad_combines),    SOLO(weights_by_selection),     SOLO(ranges_by_source),
        SOLO(bad_descriptors), SOLO(credit_outside_its_chunk), SOLO(lent_rows_outside_their_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
