#include "daemon/base/handles.h"

#include <stdlib.h>

#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void ids_are_never_zero_and_survive_packing(void **state)
{
    (void)state;
    struct epd_handles t;
    struct epd_handle h, back;
    int object;
    void *got = NULL;
    epd_handles_init(&t, 4);
    assert_int_equal(epd_handles_add(&t, &object, &h, NULL), EPD_OK);
    assert_true(h.generation != 0 && epd_handle_pack(h) != 0);
    back = epd_handle_unpack(epd_handle_pack(h));
    assert_true(back.index == h.index && back.generation == h.generation);
    assert_int_equal(epd_handles_get(&t, back, &got, NULL), EPD_OK);
    assert_ptr_equal(got, &object);
    epd_handles_fini(&t);
    epd_handles_fini(&t);
}

static void stale_is_told_from_never(void **state)
{
    (void)state;
    struct epd_handles t;
    struct epd_handle h, next;
    struct epd_error err;
    int a, b;
    void *got = &a;
    epd_handles_init(&t, 4);
    assert_int_equal(epd_handles_add(&t, &a, &h, NULL), EPD_OK);
    epd_handles_remove(&t, h);
    assert_int_equal(epd_handles_get(&t, h, &got, &err), EPD_ESTALE);
    assert_ptr_equal(got, &a); /* set only on success */
    assert_int_equal(epd_handles_add(&t, &b, &next, NULL), EPD_OK);
    assert_int_equal(next.index, h.index);
    assert_int_not_equal(next.generation, h.generation);
    assert_int_equal(epd_handles_get(&t, h, &got, &err), EPD_ESTALE);
    const struct epd_handle never[] = {{9, 1}, {h.index, 0}, {h.index, 77}, {UINT32_MAX, 1}};
    for (size_t i = 0; i < EPD_ARRAY_LEN(never); i++)
        assert_int_equal(epd_handles_get(&t, never[i], &got, &err), EPD_ENOENT);
    epd_handles_fini(&t);
}

static void limit_counts_live_objects(void **state)
{
    (void)state;
    struct epd_handles t;
    struct epd_handle h[3];
    struct epd_error err;
    int object;
    epd_handles_init(&t, 2);
    assert_int_equal(epd_handles_add(&t, &object, &h[0], &err), EPD_OK);
    assert_int_equal(epd_handles_add(&t, &object, &h[1], &err), EPD_OK);
    assert_int_equal(epd_handles_add(&t, &object, &h[2], &err), EPD_ELIMIT);
    epd_handles_remove(&t, h[0]);
    assert_int_equal(epd_handles_add(&t, &object, &h[2], &err), EPD_OK);
    epd_handles_fini(&t);
}

static void iteration_allows_removal(void **state)
{
    (void)state;
    enum { N = 100 };
    struct epd_handles t;
    struct epd_handle h[N];
    int object[N];
    uint32_t cursor = 0;
    unsigned seen = 0;
    epd_handles_init(&t, N);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(epd_handles_add(&t, &object[i], &h[i], NULL), EPD_OK);
    for (int *o; (o = epd_handles_next(&t, &cursor)) != NULL; seen++)
        if ((o - object) % 2 == 0)
            epd_handles_remove(&t, h[o - object]);
    assert_int_equal(seen, N);
    cursor = seen = 0;
    for (int *o; (o = epd_handles_next(&t, &cursor)) != NULL; seen++)
        assert_int_equal((o - object) % 2, 1);
    assert_int_equal(seen, N / 2);
    epd_handles_fini(&t);
}

/* Against a plain list: 20 000 random adds, removes and lookups. */
static void random_use_matches_a_model(void **state)
{
    (void)state;
    enum { N = 64 };
    struct epd_handles t;
    struct epd_handle live[N], dead = {0, 0};
    void *object[N];
    unsigned n = 0;
    uint32_t seed = 1;
    epd_handles_init(&t, N);
    for (unsigned i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t r = seed >> 16;
        if (n < N && r % 2 == 0) {
            object[n] = (void *)(uintptr_t)(i + 1);
            assert_int_equal(epd_handles_add(&t, object[n], &live[n], NULL), EPD_OK);
            n++;
        } else if (n > 0) {
            const unsigned at = r % n;
            dead = live[at];
            epd_handles_remove(&t, dead);
            live[at] = live[--n];
            object[at] = object[n];
        }
        void *got = NULL;
        for (unsigned j = 0; j < n; j++) {
            assert_int_equal(epd_handles_get(&t, live[j], &got, NULL), EPD_OK);
            assert_ptr_equal(got, object[j]);
        }
        assert_int_equal(epd_handles_get(&t, dead, &got, NULL),
                         dead.generation == 0 ? EPD_ENOENT : EPD_ESTALE);
    }
    epd_handles_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_never_zero_and_survive_packing),
        cmocka_unit_test(stale_is_told_from_never),
        cmocka_unit_test(limit_counts_live_objects),
        cmocka_unit_test(iteration_allows_removal),
        cmocka_unit_test(random_use_matches_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
