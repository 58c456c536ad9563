/* Sentences made of completions, and the status table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/epd.h"
#include "proto/ring.h"

static void expect(const struct epd_result *r, const char *text)
{
    char buf[512];
    assert_ptr_equal(epd_result_describe(r, buf, sizeof(buf)), buf);
    assert_string_equal(buf, text);
}

static void sentences(void **state)
{
    (void)state;
    struct epd_result r = {
        .epoch = 12, .kind = EPD_OP_DISPATCH, .rows = 34, .rank = -1, .other_rank = -1};
    expect(&r, "epoch 12: dispatch complete, 34 rows");

    r.status = EPD_ERANKLATE;
    r.rank = 3;
    r.phase = EPD_PHASE_COUNTS;
    r.epoch_consumed = 1;
    expect(&r, "epoch 12: dispatch failed: rank 3 did not submit its dispatch within its deadline "
               "(phase counts); go on with the next epoch");

    r.kind = EPD_OP_COMBINE;
    r.phase = EPD_PHASE_READY;
    expect(&r, "epoch 12: combine failed: rank 3 did not submit its combine within its deadline "
               "(phase ready); go on with the next epoch");

    r.status = EPD_EMISMATCH;
    r.other_rank = 5;
    r.phase = EPD_PHASE_NONE;
    expect(&r, "epoch 12: combine failed: epoch failed: ranks disagree, ranks 3 and 5; all ranks "
               "must submit the same ops with the same tag in the same order");

    r = (struct epd_result){.epoch = 7,
                            .kind = EPD_OP_DISPATCH,
                            .status = EPD_EINVAL,
                            .rank = -1,
                            .other_rank = -1,
                            .phase = EPD_PHASE_VALIDATE,
                            .field = EPD_FIELD_B,
                            .value = 99};
    expect(&r, "epoch 7: dispatch failed: invalid argument, b is 99 (phase validate); correct it "
               "and submit again");
    r.status = EPD_EORDER;
    r.field = EPD_FIELD_EPOCH;
    r.value = 6;
    r.phase = EPD_PHASE_NONE;
    expect(&r, "epoch 7: dispatch failed: epoch out of order, expected epoch 6; submit the epoch "
               "named, or take epochs from epd_lease_epoch");
    r.status = EPD_ERANKLOST;
    r.field = EPD_FIELD_NONE;
    r.rank = 2;
    expect(&r, "epoch 7: dispatch failed: generation changed: rank lost, rank 2; call epd_rearm "
               "and go on at epoch 0");
}

static void short_buffers(void **state)
{
    (void)state;
    const struct epd_result r = {.status = EPD_ERANKLATE,
                                 .rank = 3,
                                 .phase = 250,
                                 .field = 250,
                                 .kind = 250,
                                 .other_rank = -1};
    char buf[300];
    for (size_t len = 0; len <= 200; len++) {
        memset(buf, '#', sizeof(buf));
        (void)epd_result_describe(&r, buf, len);
        assert_int_equal(buf[len], '#');
        if (len > 0)
            assert_true(strlen(buf) < len);
    }
}

static void status_table(void **state)
{
    (void)state;
    assert_string_equal(epd_status_string(EPD_ERANKLATE), "ERANKLATE");
    assert_string_equal(epd_status_describe(EPD_OK), "ok");
    assert_int_equal(epd_status_scope_of(EPD_ERANKLATE), EPD_SCOPE_EPOCH);
    assert_int_equal(epd_status_scope_of(EPD_EENGINERESTARTED), EPD_SCOPE_GROUP);
    assert_int_equal(epd_status_scope_of(EPD_EDAEMONLOST), EPD_SCOPE_DAEMON);
    assert_string_equal(epd_status_string((enum epd_status) - 9999), "EUNKNOWN");
    assert_string_equal(epd_version(), "0.1.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentences),
        cmocka_unit_test(short_buffers),
        cmocka_unit_test(status_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
