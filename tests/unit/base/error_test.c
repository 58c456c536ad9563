#include "daemon/base/error.h"

#include <errno.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void fail_writes_status_and_message(void **state)
{
    (void)state;
    struct epd_error err = {.status = EPD_OK};
    assert_int_equal(epd_fail(&err, EPD_ENOENT, "group %s has no rank %d", "a", 7), EPD_ENOENT);
    assert_int_equal(err.status, EPD_ENOENT);
    assert_string_equal(err.message, "group a has no rank 7");
    assert_int_equal(epd_fail(NULL, EPD_EINVAL, "nobody listens"), EPD_EINVAL);
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    struct epd_error err;
    char text[1000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    (void)epd_fail(&err, EPD_EINVAL, "%s", text);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
    errno = EACCES;
    (void)epd_fail_errno(&err, "%s", text);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
    (void)epd_fail(&err, EPD_EINVAL, "tail");
    (void)epd_fail_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
}

static void errno_is_told_and_kept(void **state)
{
    (void)state;
    static const struct {
        int errnum;
        enum epd_status status;
    } rows[] = {
        {EACCES, EPD_ESYS}, {ENOMEM, EPD_ENOMEM}, {EMFILE, EPD_ELIMIT}, {ENFILE, EPD_ELIMIT}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct epd_error err;
        char want[128];
        errno = rows[i].errnum;
        assert_int_equal(epd_fail_errno(&err, "open of %s", "/x"), rows[i].status);
        assert_int_equal(errno, rows[i].errnum);
        assert_int_equal(err.status, rows[i].status);
        strcpy(want, "open of /x: ");
        strcat(want, strerror(rows[i].errnum));
        assert_string_equal(err.message, want);
    }
}

static void prefix_goes_in_front(void **state)
{
    (void)state;
    struct epd_error err;
    (void)epd_fail(&err, EPD_ELIMIT, "table is full");
    assert_int_equal(epd_fail_prefix(&err, "session %u", 3u), EPD_ELIMIT);
    assert_string_equal(err.message, "session 3: table is full");
}

/* The rows of errors.h themselves, so that a renumbered code is seen. */
static void table_is_complete(void **state)
{
    (void)state;
    assert_string_equal(epd_status_name(EPD_OK), "OK");
    assert_string_equal(epd_status_name(EPD_ERANKLATE), "ERANKLATE");
    assert_string_equal(epd_status_text(EPD_ESTALE), "stale id");
    assert_int_equal(epd_status_grpc(EPD_EPERM), 7);
    assert_int_equal(epd_status_grpc(EPD_EUNREACHABLE), 14);
    assert_int_equal(epd_status_scope(EPD_OK), EPD_SCOPE_NONE);
    assert_int_equal(epd_status_scope(EPD_EGENERATION), EPD_SCOPE_GROUP);
    assert_string_equal(epd_status_text((enum epd_status)(-999)), "unknown status");
    assert_int_equal(epd_status_grpc((enum epd_status)(-999)), 2);
#define DISTINCT(name, value, text, grpc, scope)                                                   \
    assert_string_equal(epd_status_name(EPD_##name), #name);                                       \
    assert_true((value) <= 0 && (grpc) >= 0 && (grpc) <= 16);
    EPD_STATUS_MAP(DISTINCT)
#undef DISTINCT
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_writes_status_and_message),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(errno_is_told_and_kept),
        cmocka_unit_test(prefix_goes_in_front),
        cmocka_unit_test(table_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
