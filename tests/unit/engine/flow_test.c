/* Who waits for whom: holds, releases, settling, order; and what a revoke, a failed epoch and a new
 * generation wait for. Tasks run when the test says so. */
#include "tests/unit/engine/solo.h"

/* Rank 0's rows for rank 1 are about to be written: the task is there and has not run. */
static void until_rows_are_in_flight(void)
{
    for (uint32_t t = 0; t < 100; t++)
        g.mem[0]->ids[t][0] = 2;
    dispatch(0, 0, 100);
    dispatch(1, 0, 0);
    step();
    work(); /* routes */
    step();
    assert_true(g.group->seat[0]->op[0].running);
}

static void rows_before_done(void **state)
{
    (void)state;
    until_rows_are_in_flight();
    expect_none(0);
    expect_none(1);
    assert_true(g.mem[1]->recv[0][0][0] == 0);
    work();
    step();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
    assert_true(g.mem[1]->recv[0][99][0] == g.mem[0]->x[99][0]);
}

static void held_until_released(void **state)
{
    (void)state;
    dispatch(0, 0, 3);
    dispatch(1, 0, 3);
    run();
    const struct epd_completion *c = expect(0, EPD_OK);
    assert_int_equal(c->released_epoch, 0);
    (void)expect(1, EPD_OK);
    g.mem[0]->x[0][0] = 77;
    for (uint32_t r = 0; r < R; r++) /* into the set that epoch 0 still has */
        submit(r, (struct epd_entry){.kind = EPD_OP_DISPATCH, .epoch = 1, .b = 3});
    run();
    expect_none(0);
    expect_none(1);
    assert_true(g.mem[0]->recv[0][0][0] != 77);
    for (uint32_t r = 0; r < R; r++)
        submit(r, (struct epd_entry){.kind = EPD_OP_RELEASE, .epoch = 0});
    run();
    for (uint32_t r = 0; r < R; r++) {
        assert_int_equal(expect(r, EPD_OK)->kind, EPD_OP_DISPATCH);
        assert_int_equal(expect(r, EPD_OK)->released_epoch, 1);
    }
    assert_true(g.mem[0]->recv[0][0][0] == 77);
    assert_int_equal(epd_ring_header_at(g.ring[0])->released_epoch, 1);
}

/* Rank 0 needs nobody for its combine, but its rows are lent until rank 1 has read them. */
static void lent_until_read(void **state)
{
    (void)state;
    dispatch(0, 0, 3);
    dispatch(1, 0, 3);
    run();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
    combine(0, 0);
    run();
    (void)expect(0, EPD_OK);
    submit(0, (struct epd_entry){.kind = EPD_OP_COMBINE, .epoch = 9});
    run();
    assert_int_equal(expect(0, EPD_EORDER)->released_epoch, 0);
    combine(1, 0);
    run();
    submit(0, (struct epd_entry){.kind = EPD_OP_COMBINE, .epoch = 9});
    run();
    assert_int_equal(expect(0, EPD_EORDER)->released_epoch, 1);
}

/* The next dispatch does not complete before the rows of the combine before it are read. */
static void settles_after_the_readers(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < B; t++)
        g.mem[1]->ids[t][0] = 0; /* rank 1 reads rank 0's rows, in ten slices */
    dispatch(0, 0, 1);
    dispatch(1, 0, B);
    run();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
    combine(0, 0);
    combine(1, 0);
    dispatch(0, 1, 1);
    dispatch(1, 1, 0);
    bool read = false, done = false;
    for (unsigned i = 0; i < 200 && !done; i++) {
        const struct epd_completion *c;
        step();
        read = read || next(1) != NULL;
        while ((c = next(0)) != NULL)
            done = c->kind == EPD_OP_DISPATCH;
        assert_true(read || !done);
        (void)epd_workers_run_one(g.engine.workers);
    }
    assert_true(done);
}

/* A turn keeps its map for four epochs; what it says of tokens past b is of an older one. */
static void tokens_past_b_stay_home(void **state)
{
    (void)state;
    int32_t(*ids)[K] = g.mem[0]->ids;
    ids[0][0] = ids[0][1] = 0;
    ids[1][0] = ids[1][1] = 1;
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        if (epoch == 4)
            ids[0][0] = ids[0][1] = 1;
        dispatch(0, epoch, epoch == 4 ? 1 : 2);
        dispatch(1, epoch, 0);
        run();
        (void)expect(0, EPD_OK);
        (void)expect(1, EPD_OK);
        if (epoch < 4)
            for (uint32_t r = 0; r < R; r++)
                submit(r, (struct epd_entry){.kind = EPD_OP_RELEASE, .epoch = epoch});
        run();
        if (epoch < 4)
            for (uint32_t r = 0; r < R; r++)
                (void)expect(r, EPD_OK);
    }
    assert_int_equal(g.mem[0]->counts[0][1], 1);
    assert_true(g.mem[0]->recv[0][R * B][0] == g.mem[0]->x[0][0]);
}

static void combine_of_its_own_set(void **state)
{
    (void)state;
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        g.mem[0]->x[0][0] = epoch == 0 ? 100 : 7;
        dispatch(0, epoch, 1);
        dispatch(1, epoch, 1);
        run();
        (void)expect(0, EPD_OK);
    }
    combine(0, 1);
    run();
    (void)expect(0, EPD_OK);
    assert_true(g.mem[0]->out[0][0] == 7 * 3);
}

static void completions_in_order(void **state)
{
    (void)state;
    dispatch(0, 0, 1);
    submit(0, (struct epd_entry){.kind = 9}); /* bad, and known at once */
    run();
    expect_none(0);
    dispatch(1, 0, 1);
    run();
    const struct epd_completion *c = expect(0, EPD_OK);
    assert_int_equal(c->kind, EPD_OP_DISPATCH);
    c = expect(0, EPD_EINVAL);
    assert_int_equal(c->kind, 9);
}

static void descriptor_in_flight(void **state)
{
    (void)state;
    const struct epd_msg_desc d = dispatch_desc(0);
    until_rows_are_in_flight();
    assert_int_equal(epd_groups_desc_clear(&g.engine, &d, NULL), EPD_EBUSY);
    work();
    step();
    assert_int_equal(epd_groups_desc_clear(&g.engine, &d, NULL), EPD_OK);
}

static void failure_of_long_ago(void **state)
{
    (void)state;
    for (uint64_t epoch = 0; epoch < EPD_FAILED_KEPT + 8; epoch++) {
        const struct epd_msg_epoch m = epoch_message(epoch, 1, EPD_ERANKLATE);
        assert_int_equal(epd_groups_fail(&g.engine, &m, NULL), EPD_OK);
    }
    dispatch(0, 0, 1); /* its cause is no longer kept, but it failed */
    run();
    const struct epd_completion *c = expect(0, EPD_EEPOCH);
    assert_int_equal(c->flags, EPD_COMPLETION_EPOCH_CONSUMED);
    for (uint64_t epoch = 1; epoch < EPD_FAILED_KEPT + 8; epoch++) {
        dispatch(0, epoch, 1);
        run();
        (void)expect(0, epoch < 8 ? EPD_EEPOCH : EPD_ERANKLATE);
    }
    dispatch(0, EPD_FAILED_KEPT + 8, 1);
    run();
    expect_none(0); /* that one waits for rank 1 */
}

static void revoke_waits_for_tasks(void **state)
{
    (void)state;
    until_rows_are_in_flight();
    const struct epd_msg_epoch m = epoch_message(EPD_EPOCH_ALL, 2, EPD_ERANKLOST);
    assert_int_equal(epd_groups_revoke(&g.engine, &m, NULL), EPD_OK);
    step();
    assert_int_equal(g_replied, 0);
    assert_int_equal(epd_groups_generation(&g.engine, &m, NULL), EPD_EBUSY);
    work();
    step();
    assert_int_equal(g_replied, 9);
    expect_none(0);
    assert_int_equal(epd_groups_generation(&g.engine, &m, NULL), EPD_OK);
    (void)expect(0, EPD_ERANKLOST);
    (void)expect(1, EPD_ERANKLOST);
}

static void revoked_epoch_stands_still(void **state)
{
    (void)state;
    const struct epd_msg_epoch m = epoch_message(0, 1, EPD_ERANKLATE);
    assert_int_equal(epd_groups_revoke(&g.engine, &m, NULL), EPD_OK);
    step();
    assert_int_equal(g_replied, 9);
    dispatch(0, 0, 1); /* taken after the revoke, before the failure is told */
    dispatch(1, 0, 1);
    run();
    expect_none(0);
    expect_none(1);
    assert_int_equal(epd_groups_fail(&g.engine, &m, NULL), EPD_OK);
    step();
    (void)expect(0, EPD_ERANKLATE);
    (void)expect(1, EPD_ERANKLATE);
    dispatch(0, 1, 1);
    dispatch(1, 1, 1);
    run();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
}

static void generation_starts_with_arm(void **state)
{
    (void)state;
    const struct epd_msg_epoch m = epoch_message(EPD_EPOCH_ALL, 2, EPD_ERANKLOST);
    const struct epd_msg_epoch old = epoch_message(0, 1, EPD_ERANKLATE);
    dispatch(0, 0, 1);
    run();
    assert_int_equal(epd_groups_revoke(&g.engine, &m, NULL), EPD_OK);
    step();
    assert_int_equal(epd_groups_generation(&g.engine, &m, NULL), EPD_OK);
    (void)expect(0, EPD_ERANKLOST);
    for (uint64_t i = 0; i < g.group->map.bytes; i++) /* nothing of the old one stays */
        assert_int_equal(g.group->exchange[0][i], 0);
    g.generation = 2;
    dispatch(0, 0, 1);
    dispatch(1, 0, 1);
    run();
    expect_none(0); /* not before every engine has the generation */
    expect_none(1);
    assert_int_equal(epd_groups_arm(&g.engine, &old, NULL), EPD_ESTALE);
    assert_int_equal(epd_groups_fail(&g.engine, &old, NULL), EPD_OK); /* overtaken */
    run();
    expect_none(0);
    assert_int_equal(epd_groups_arm(&g.engine, &m, NULL), EPD_OK);
    run();
    (void)expect(0, EPD_OK);
    (void)expect(1, EPD_OK);
}

#define SOLO(test) cmocka_unit_test_setup_teardown(test, solo_begin, solo_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SOLO(rows_before_done),
        SOLO(held_until_released),
        SOLO(lent_until_read),
        SOLO(settles_after_the_readers),
        SOLO(tokens_past_b_stay_home),
        SOLO(combine_of_its_own_set),
        SOLO(completions_in_order),
        SOLO(descriptor_in_flight),
        SOLO(failure_of_long_ago),
        SOLO(revoke_waits_for_tasks),
        SOLO(revoked_epoch_stands_still),
        SOLO(generation_starts_with_arm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
