/* Options of replay, the token pattern, exit codes, and the NumPy writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/epdctl/npy.h"
#include "client/epdctl/replay.h"

static char g_trace[64];

static int plan_of(struct replay_plan *plan, const char *const *extra)
{
    char *argv[40] = {(char *)(uintptr_t) "replay", g_trace};
    int argc = 2;
    while (*extra != NULL)
        argv[argc++] = (char *)(uintptr_t)*extra++;
    struct ctl ctl = {.verb = "replay", .argc = argc, .argv = argv};
    optind = 0;
    /* Usage texts are expected; cmocka reports on the same stream. */
    const int quiet = open("/dev/null", O_WRONLY), saved = dup(STDERR_FILENO);
    (void)dup2(quiet, STDERR_FILENO);
    const int code = replay_plan_parse(&ctl, plan);
    (void)fflush(stderr);
    (void)dup2(saved, STDERR_FILENO);
    (void)close(quiet);
    (void)close(saved);
    return code;
}
#define PLAN(plan, ...) plan_of((plan), (const char *const[]){__VA_ARGS__, NULL})

static int setup(void **state)
{
    (void)state;
    strcpy(g_trace, "/tmp/epd-plan-XXXXXX");
    int fd = mkstemp(g_trace);
    static const char text[] = "# experts=4 topk=1\nlayer,seq,token,e0,w0\n"
                               "2,0,0,0,1\n2,0,1,1,1\n2,0,2,2,1\n2,0,3,3,1\n2,0,4,0,1\n";
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    close(fd);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    return unlink(g_trace);
}

static void test_good(void **state)
{
    (void)state;
    static struct replay_plan p;
    assert_int_equal(PLAN(&p, "--ranks", "4", "--batch", "1", "--hidden", "8", "--clients", "3",
                          "--placement", "0,0,1,1", "--kill-client", "2@0"),
                     CTL_OK);
    assert_int_equal(replay_steps(&p, 5), 2); /* the last step is uneven */
    assert_int_equal(replay_client_of(&p, 0), 0);
    assert_int_equal(replay_client_of(&p, 1), 0);
    assert_int_equal(replay_client_of(&p, 2), 1);
    assert_int_equal(replay_client_of(&p, 3), 2);
    static struct replay_inputs in;
    assert_true(replay_inputs_init(&in, &p, trace_find(&p.trace, 2), 1));
    assert_int_equal(in.in[0].b, 1);
    assert_int_equal(in.in[1].b, 0);
    assert_int_equal(in.in[0].ids[0], 0);
    replay_inputs_free(&in);
    replay_plan_free(&p);
}

static void test_bad(void **state)
{
    (void)state;
    static struct replay_plan p;
    assert_int_equal(PLAN(&p, "--ranks", "3"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "0"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "2", "--clients", "3"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--hidden", "7"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--dtype", "fp8"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--mode", "ht"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--layout", "flat"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--layers", "3"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--layers", "2,,2"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--batch", "1", "--steps", "3"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--placement", "0,1"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--ranks", "4", "--kill-client", "9@0"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "--bogus"), CTL_USAGE);
    assert_int_equal(PLAN(&p, "second-trace"), CTL_USAGE);
}

static void test_pattern(void **state)
{
    (void)state;
    /* ((31*g + 7*h + 13*layer + (g div 257)*h*h) mod 257 - 128) / 128 */
    assert_true(replay_value(0, 0, 0) == -1.0f);
    assert_true(replay_value(1, 2, 3) == (31 * 2 + 7 * 3 + 13 - 128) / 128.0f);
    assert_true(replay_value(1, 600, 5) == ((31 * 600 + 35 + 13 + 2 * 25) % 257 - 128) / 128.0f);
}

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(ctl_exit_of(EPD_OK), 0);
    assert_int_equal(ctl_exit_of(EPD_EINTERNAL), 1);
    assert_int_equal(ctl_exit_of(EPD_EINVAL), 2);
    assert_int_equal(ctl_exit_of(EPD_EUNREACHABLE), 3);
    assert_int_equal(ctl_exit_of(EPD_EPERM), 5);
    assert_int_equal(ctl_exit_of(EPD_EVERSION), 6);
    assert_int_equal(ctl_exit_of(EPD_ETIMEDOUT), 7);
}

static void test_npy(void **state)
{
    (void)state;
    char path[] = "/tmp/epd-npy-XXXXXX", got[256] = "";
    close(mkstemp(path));
    const int32_t data[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(npy_write(path, "<i4", (const uint64_t[]){2, 3}, 2, data, NULL), EPD_OK);
    FILE *f = fopen(path, "r");
    const size_t n = fread(got, 1, sizeof(got), f);
    fclose(f);
    assert_memory_equal(got, "\x93NUMPY\x01\x00", 8);
    const size_t head = (size_t)(uint8_t)got[8];
    assert_int_equal((10 + head) % 64, 0);
    assert_int_equal(n, 10 + head + sizeof(data));
    assert_memory_equal(got + 10 + head, data, sizeof(data));
    assert_non_null(strstr(got + 10, "'shape': (2, 3)"));
    assert_int_equal(npy_write(path, "<u2", (const uint64_t[]){0}, 1, data, NULL), EPD_OK);
    f = fopen(path, "r");
    memset(got, 0, sizeof(got));
    (void)!fread(got, 1, sizeof(got) - 1, f);
    fclose(f);
    assert_non_null(strstr(got + 10, "'shape': (0,)"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),    cmocka_unit_test(test_bad),
        cmocka_unit_test(test_pattern), cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_npy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
