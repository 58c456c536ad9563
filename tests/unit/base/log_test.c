#define EPD_LOG_COMPONENT "unit"
#include "daemon/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static int g_stderr = -1;
static FILE *g_file;
static char g_text[65536];

/* stderr goes to a file between capture and text. */
static void capture(void)
{
    (void)fflush(stderr);
    g_file = tmpfile();
    g_stderr = dup(STDERR_FILENO);
    assert_true(g_file != NULL && dup2(fileno(g_file), STDERR_FILENO) >= 0);
}
static const char *text(void)
{
    (void)dup2(g_stderr, STDERR_FILENO);
    (void)close(g_stderr);
    rewind(g_file);
    g_text[fread(g_text, 1, sizeof(g_text) - 1, g_file)] = 0;
    (void)fclose(g_file);
    return g_text;
}

static void line_has_time_level_component(void **state)
{
    (void)state;
    int year, ms;
    epd_log_init(EPD_LOG_INFO, NULL);
    capture();
    log_warn("device %u is late", 3u);
    const char *line = text();
    assert_int_equal(sscanf(line, "%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%3dZ", &year, &ms), 2);
    assert_true(year >= 2024);
    assert_string_equal(strchr(line, ' '), " warn unit: device 3 is late\n");
    epd_log_init(EPD_LOG_INFO, "engine0");
    capture();
    log_error("stopped");
    assert_non_null(strstr(text(), " error engine0/unit: stopped\n"));
    epd_log_init(EPD_LOG_INFO, NULL);
}

static void level_filters(void **state)
{
    (void)state;
    enum epd_log_level level = EPD_LOG_ERROR;
    assert_int_equal(epd_log_level_parse("debug", &level), 0);
    assert_int_equal(level, EPD_LOG_DEBUG);
    assert_int_equal(epd_log_level_parse("loud", &level), -1);
    assert_int_equal(level, EPD_LOG_DEBUG);
    epd_log_set_level(EPD_LOG_WARN);
    capture();
    log_info("not shown");
    log_debug("not shown");
    log_warn("shown");
    const char *lines = text();
    assert_null(strstr(lines, "not shown"));
    assert_non_null(strstr(lines, "shown"));
    epd_log_set_level(EPD_LOG_INFO);
}

static void one_record_is_one_line(void **state)
{
    (void)state;
    char big[3000];
    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = 0;
    capture();
    errno = ENOENT;
    log_info("forged\n2026 error x: \x1b[2J\r and %m");
    assert_int_equal(errno, ENOENT);
    log_info("%s", big);
    const char *lines = text();
    unsigned n = 0;
    for (const char *c = lines; *c != 0; c++) {
        n += *c == '\n';
        assert_true(*c == '\n' || (unsigned char)*c >= 0x20);
    }
    assert_int_equal(n, 2);
    assert_non_null(strstr(lines, strerror(ENOENT)));
}

static void journal_gets_priorities(void **state)
{
    (void)state;
    struct stat st;
    char stream[64];
    capture();
    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    (void)setenv("JOURNAL_STREAM", stream, 1);
    epd_log_init(EPD_LOG_INFO, NULL);
    log_warn("late");
    (void)setenv("JOURNAL_STREAM", "1:1", 1); /* stderr was redirected since */
    epd_log_init(EPD_LOG_INFO, NULL);
    log_warn("plain");
    const char *lines = text();
    assert_true(strncmp(lines, "<4>warn unit: late\n2", 20) == 0);
    (void)unsetenv("JOURNAL_STREAM");
    epd_log_init(EPD_LOG_INFO, NULL);
}

static void limited_lines_say_what_was_dropped(void **state)
{
    (void)state;
    capture();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 10; i++)
            log_limited(EPD_LOG_WARN, 50, "flood %d", round);
        (void)usleep(60000);
    }
    struct epd_log_limit limit = {0};
    unsigned dropped = 99;
    assert_int_equal(epd_log_limit_pass(&limit, 60000, &dropped), 1);
    assert_int_equal(dropped, 0);
    assert_int_equal(epd_log_limit_pass(&limit, 60000, &dropped), 0);
    const char *lines = text();
    assert_non_null(strstr(lines, "flood 0\n"));
    assert_null(strstr(strstr(lines, "flood 0\n") + 1, "flood 0"));
}

static void *writer(void *arg)
{
    for (int i = 0; i < 100; i++)
        log_info("thread %s line %d end", (const char *)arg, i);
    return NULL;
}
static void threads_do_not_mix_lines(void **state)
{
    (void)state;
    pthread_t threads[4];
    static char names[4][2] = {"a", "b", "c", "d"};
    capture();
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, writer, names[i]), 0);
    for (int i = 0; i < 4; i++)
        (void)pthread_join(threads[i], NULL);
    unsigned n = 0;
    (void)text();
    for (char *save, *line = strtok_r(g_text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        assert_string_equal(line + strlen(line) - 4, " end");
        n++;
    }
    assert_int_equal(n, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_has_time_level_component),
        cmocka_unit_test(level_filters),
        cmocka_unit_test(one_record_is_one_line),
        cmocka_unit_test(journal_gets_priorities),
        cmocka_unit_test(limited_lines_say_what_was_dropped),
        cmocka_unit_test(threads_do_not_mix_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
