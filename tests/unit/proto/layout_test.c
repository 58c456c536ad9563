/* Control words: which generation, epoch and count a word is of. */
#include "proto/layout.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void word_is_of_one_epoch(void **state)
{
    (void)state;
    static const uint64_t epochs[] = {0, 1, 2, 3, 4, 5, 8, 1u << 20, EPD_WORD_EPOCH_LIMIT - 1};
    const size_t n = sizeof(epochs) / sizeof(epochs[0]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            const uint64_t word = epd_word_pack(3, epochs[i], 17);
            assert_int_equal(epd_word_is(word, 3, epochs[k]), i == k);
            assert_int_equal(epd_word_count(word), 17);
        }
}

static void word_is_of_one_generation(void **state)
{
    (void)state;
    for (uint32_t a = 1; a < 40; a++)
        for (uint32_t b = 1; b < 40; b++)
            assert_int_equal(epd_word_is(epd_word_pack(a, 6, 0), b, 6), a == b);
}

static void word_0_is_of_none(void **state)
{
    (void)state;
    for (uint32_t generation = 1; generation < 3 * 4096; generation++) {
        assert_in_range(epd_word_generation(generation), 1, 4095);
        assert_false(epd_word_is(0, generation, 0));
        assert_true(epd_word_generation(generation) != epd_word_generation(generation + 1));
    }
}

static void count_holds_its_largest(void **state)
{
    (void)state;
    const uint64_t word = epd_word_pack(4095, EPD_WORD_EPOCH_LIMIT - 1, EPD_WORD_COUNT_MASK);
    assert_int_equal(epd_word_count(word), EPD_WORD_COUNT_MASK);
    assert_true(epd_word_is(word, 4095, EPD_WORD_EPOCH_LIMIT - 1));
    assert_true(EPD_MAX_TOKENS <= EPD_WORD_COUNT_MASK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(word_is_of_one_epoch),
        cmocka_unit_test(word_is_of_one_generation),
        cmocka_unit_test(word_0_is_of_none),
        cmocka_unit_test(count_holds_its_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
