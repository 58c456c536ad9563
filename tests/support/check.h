/* Failing with a sentence. check_* end the running test when called in the test process; in a
 * child they print and leave with code 98. */
#ifndef EPD_TESTS_CHECK_H
#define EPD_TESTS_CHECK_H

#include <stdbool.h>

__attribute__((noreturn, format(printf, 3, 4))) void check_fail_at(const char *file, int line,
                                                                   const char *fmt, ...);
#define check_fail(...) check_fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define check_true(cond, ...)                                                                      \
    do {                                                                                           \
        if (!(cond))                                                                               \
            check_fail_at(__FILE__, __LINE__, __VA_ARGS__);                                        \
    } while (0)
/* Values are printed. */
#define check_int(got, want, what)                                                                 \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_)                                                                         \
            check_fail_at(__FILE__, __LINE__, "%s: got %lld, expected %lld", (what), got_, want_); \
    } while (0)

/* "  measured: ..." on stdout. */
__attribute__((format(printf, 1, 2))) void measured(const char *fmt, ...);

/* Include this where cmocka.h is needed: its own prerequisites come first. */
#define SKIP_EXIT 77

#endif
