/* Boilerplate of a test binary that shares one daemon between its tests: SUITE_DAEMON declares
 * g_daemon, the setup and the teardowns; agents die and the log is checked after every test. */
#ifndef EPD_TESTS_SUITE_H
#define EPD_TESTS_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/agent.h"
#include "tests/support/check.h"
#include "tests/support/cluster.h"
#include "tests/support/harness.h"
#include "tests/support/proc.h"
#include "tests/support/procfs.h"

#define SUITE_DAEMON(...)                                                                          \
    static struct daemon g_daemon;                                                                 \
    static int suite_setup(void **state)                                                           \
    {                                                                                              \
        (void)state;                                                                               \
        const struct daemon_config config = {__VA_ARGS__};                                         \
        daemon_start(&g_daemon, &config);                                                          \
        return 0;                                                                                  \
    }                                                                                              \
    static int suite_teardown(void **state)                                                        \
    {                                                                                              \
        (void)state;                                                                               \
        daemon_stop(&g_daemon);                                                                    \
        return 0;                                                                                  \
    }                                                                                              \
    static int test_end(void **state)                                                              \
    {                                                                                              \
        (void)state;                                                                               \
        agents_kill_all();                                                                         \
        daemon_check_log(&g_daemon);                                                               \
        g_daemon.n_allowed = 0;                                                                    \
        return 0;                                                                                  \
    }
#define SUITE_TEST(f) cmocka_unit_test_teardown(f, test_end)

/* For tests that each have a daemon of their own: whatever a failed test left is killed. */
static inline int kill_everything(void **state)
{
    (void)state;
    agents_kill_all();
    proc_kill_all();
    return 0;
}
#define LONELY_TEST(f) cmocka_unit_test_teardown(f, kill_everything)

#endif
