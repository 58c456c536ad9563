#include "tests/support/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

/* Agents come and go by the hundred: without this each of them sleeps a second at its end. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

static pid_t g_test_pid;

__attribute__((constructor)) static void remember_test(void)
{
    g_test_pid = getpid();
}

void check_fail_at(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (getpid() != g_test_pid) {
        (void)fprintf(stderr, "%s:%d: in child %d: %s\n", file, line, (int)getpid(), text);
        _exit(98);
    }
    print_error("%s\n", text);
    _fail(file, line);
    _exit(98); /* _fail jumps to the runner */
}

void measured(const char *fmt, ...)
{
    va_list ap;
    (void)printf("  measured: ");
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)printf("\n");
    (void)fflush(stdout);
}
