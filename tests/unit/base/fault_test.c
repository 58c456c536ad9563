#include "daemon/base/fault.h"

#include <stdlib.h>

#include "daemon/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static unsigned hits(const char *name, unsigned passages)
{
    unsigned mask = 0;
    for (unsigned i = 0; i < passages; i++)
        mask |= (unsigned)EPD_FAULT(name) << i;
    return mask;
}

static void environment_is_read_at_the_first_point(void **state)
{
    (void)state;
    (void)setenv("EPD_FAULTS", "a.b:2", 1);
    assert_int_equal(hits("a.b", 4), 1u << 1);
}
static void nth_from_and_all(void **state)
{
    (void)state;
    epd_fault_set("one:3,from:2-,all");
    assert_int_equal(hits("one", 6), 1u << 2);
    assert_int_equal(hits("from", 4), 0xe);
    assert_int_equal(hits("all", 4), 0xf);
    assert_int_equal(hits("other", 4), 0);
    epd_fault_set(NULL);
    assert_int_equal(hits("all", 4), 0);
}
static void malformed_entries_are_ignored(void **state)
{
    (void)state;
    epd_log_set_level(EPD_LOG_ERROR);
    epd_fault_set(",x:,y:0,z:q,:3,w:1x,good:1,");
    assert_int_equal(hits("good", 2), 1);
    assert_int_equal(hits("x", 2) | hits("y", 2) | hits("z", 2) | hits("w", 2) | hits("", 2), 0);
    epd_fault_set(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_is_read_at_the_first_point),
        cmocka_unit_test(nth_from_and_all),
        cmocka_unit_test(malformed_entries_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
