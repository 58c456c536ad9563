#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void descriptors_close_once(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int copy = fd;
    errno = EAGAIN;
    epd_close_fd(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(copy, F_GETFD), -1);
    epd_close_fd(&fd);
    int kept = -1;
    {
        EPD_AUTO_CLOSE int scoped = open("/dev/null", O_RDONLY | O_CLOEXEC);
        kept = epd_steal_fd(&scoped);
        assert_int_equal(scoped, -1);
    }
    assert_true(fcntl(kept, F_GETFD) >= 0);
    epd_close_fd(&kept);
}

static void memory_is_freed(void **state)
{
    (void)state;
    char *p = malloc(8);
    epd_free_ptr(&p);
    assert_null(p);
    epd_free_ptr(&p);
    EPD_AUTO_FREE char *scoped = malloc(8);
    assert_non_null(scoped); /* the leak checker sees the rest */
}

static void time_and_chance(void **state)
{
    (void)state;
    const uint64_t before = epd_now_ns();
    (void)usleep(2000);
    const uint64_t after = epd_now_ns();
    assert_true(after - before >= 2000000 && after - before < 60ull * 1000000000);
    unsigned char a[300] = {0}, b[300] = {0};
    epd_random_bytes(a, sizeof(a));
    epd_random_bytes(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a + 284, b + 284, 16);
    epd_random_bytes(a, 0);
}

static void assertion_aborts(void **state)
{
    (void)state;
    epd_assert(1 + 1 == 2);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        epd_assert_failed("x", "y.c", 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_close_once),
        cmocka_unit_test(memory_is_freed),
        cmocka_unit_test(time_and_chance),
        cmocka_unit_test(assertion_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
