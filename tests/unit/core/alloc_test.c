/* First fit, alignment, merging, and a random run against a map of pages. */
#include "daemon/core/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 64u
#define PAGE 4096u

static void first_fit(void **state)
{
    struct epd_alloc *a;
    uint64_t at;
    (void)state;
    assert_int_equal(epd_alloc_create(4 * PAGE, &a, NULL), EPD_OK);
    assert_true(epd_alloc_take(a, 1, &at));
    assert_int_equal(at, 0);
    assert_true(epd_alloc_take(a, PAGE + 1, &at));
    assert_int_equal(at, PAGE);
    assert_int_equal(epd_alloc_used(a), 3 * PAGE);
    assert_false(epd_alloc_take(a, PAGE + 1, &at));
    assert_true(epd_alloc_take(a, PAGE, &at));
    assert_int_equal(at, 3 * PAGE);
    epd_alloc_give(a, 0, 1);
    assert_true(epd_alloc_take(a, PAGE, &at));
    assert_int_equal(at, 0);
    epd_alloc_destroy(a);
}

static void merges(void **state)
{
    struct epd_alloc *a;
    uint64_t at[4], all;
    const unsigned order[4] = {1, 3, 0, 2}; /* alone, alone, before a hole, between two */
    (void)state;
    assert_int_equal(epd_alloc_create(4 * PAGE, &a, NULL), EPD_OK);
    for (unsigned i = 0; i < 4; i++)
        assert_true(epd_alloc_take(a, PAGE, &at[i]));
    for (unsigned i = 0; i < 4; i++)
        epd_alloc_give(a, at[order[i]], PAGE);
    assert_int_equal(epd_alloc_used(a), 0);
    assert_true(epd_alloc_take(a, 4 * PAGE, &all));
    assert_int_equal(all, 0);
    epd_alloc_destroy(a);
}

static void refuses(void **state)
{
    struct epd_alloc *a;
    uint64_t at = 77;
    (void)state;
    assert_int_equal(epd_alloc_create(PAGE, &a, NULL), EPD_OK);
    assert_false(epd_alloc_take(a, 0, &at));
    assert_false(epd_alloc_take(a, UINT64_MAX, &at));
    assert_false(epd_alloc_take(a, UINT64_MAX - 100, &at));
    assert_int_equal(at, 77); /* set only on success */
    epd_alloc_destroy(a);
    epd_alloc_destroy(NULL);
}

static void random_run(void **state)
{
    struct {
        uint64_t at, pages;
    } held[PAGES];
    unsigned n = 0, used = 0;
    uint8_t map[PAGES] = {0};
    struct epd_alloc *a;
    (void)state;
    srand(1);
    assert_int_equal(epd_alloc_create(PAGES * PAGE, &a, NULL), EPD_OK);
    for (unsigned step = 0; step < 20000; step++) {
        if (rand() % 2 == 0 && n < PAGES) {
            uint64_t pages = 1 + (unsigned)rand() % 9, at;
            if (!epd_alloc_take(a, pages * PAGE, &at))
                continue;
            for (uint64_t p = 0; p < pages; p++) {
                assert_int_equal(map[at / PAGE + p], 0);
                map[at / PAGE + p] = 1;
            }
            held[n].at = at;
            held[n++].pages = pages;
            used += (unsigned)pages;
        } else if (n > 0) {
            const unsigned i = (unsigned)rand() % n;
            memset(map + held[i].at / PAGE, 0, held[i].pages);
            epd_alloc_give(a, held[i].at, held[i].pages * PAGE);
            used -= (unsigned)held[i].pages;
            held[i] = held[--n];
        }
        assert_int_equal(epd_alloc_used(a), used * PAGE);
    }
    epd_alloc_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_fit),
        cmocka_unit_test(merges),
        cmocka_unit_test(refuses),
        cmocka_unit_test(random_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
