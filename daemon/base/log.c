#include "daemon/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/util.h"

static const char *const g_names[] = {"error", "warn", "info", "debug"};
static const char g_priority[] = {'3', '4', '6', '7'}; /* syslog numbers */
static int g_level = EPD_LOG_INFO;
static char g_ident[32];
static bool g_journal;

/* JOURNAL_STREAM is "device:inode" of the stream systemd gave us; stderr may have been redirected
 * since, so compare. */
static bool stderr_is_journal(void)
{
    const char *value = getenv("JOURNAL_STREAM");
    unsigned long long dev = 0, ino = 0;
    struct stat st;
    return value != NULL && sscanf(value, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void epd_log_init(enum epd_log_level level, const char *ident)
{
    epd_log_set_level(level);
    (void)snprintf(g_ident, sizeof(g_ident), "%s", ident != NULL ? ident : "");
    g_journal = stderr_is_journal();
}

void epd_log_set_level(enum epd_log_level level)
{
    __atomic_store_n(&g_level, (int)level, __ATOMIC_RELAXED);
}

enum epd_log_level epd_log_get_level(void)
{
    return (enum epd_log_level)__atomic_load_n(&g_level, __ATOMIC_RELAXED);
}

int epd_log_level_parse(const char *name, enum epd_log_level *level_out)
{
    for (unsigned i = 0; i < EPD_ARRAY_LEN(g_names); i++) {
        if (strcasecmp(name, g_names[i]) == 0) {
            *level_out = (enum epd_log_level)i;
            return 0;
        }
    }
    return -1;
}

static int put_prefix(char *line, size_t size, enum epd_log_level level)
{
    if (g_journal)
        return snprintf(line, size, "<%c>", g_priority[level]);
    struct timespec now;
    struct tm utc;
    char text[32];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    return snprintf(line, size, "%s.%03ldZ ", text, now.tv_nsec / 1000000);
}

void epd_log_write(enum epd_log_level level, const char *component, const char *fmt, ...)
{
    const int saved = errno;
    char line[1024];
    size_t n = (size_t)put_prefix(line, sizeof(line), level);
    n += (size_t)snprintf(line + n, sizeof(line) - n, "%s %s%s%s: ", g_names[level], g_ident,
                          g_ident[0] != 0 ? "/" : "", component);
    va_list args;
    va_start(args, fmt);
    errno = saved; /* %m */
    int m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, args);
    va_end(args);
    if (m > 0)
        n += (size_t)m;
    if (n > sizeof(line) - 2)
        n = sizeof(line) - 2;
    for (size_t i = 0; i < n; i++) /* a peer's text must not forge a line or steer a terminal */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    line[n++] = '\n';
    (void)!write(STDERR_FILENO, line, n); /* nowhere left to say that stderr is gone */
    errno = saved;
}

int epd_log_limit_pass(struct epd_log_limit *limit, unsigned interval_ms, unsigned *dropped_out)
{
    const unsigned long long now = epd_now_ns();
    unsigned long long next = __atomic_load_n(&limit->next_ns, __ATOMIC_RELAXED);
    const unsigned long long then = now + interval_ms * 1000000ull;
    if (now < next || !__atomic_compare_exchange_n(&limit->next_ns, &next, then, 0,
                                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        (void)__atomic_add_fetch(&limit->dropped, 1, __ATOMIC_RELAXED);
        return 0;
    }
    *dropped_out = __atomic_exchange_n(&limit->dropped, 0, __ATOMIC_RELAXED);
    return 1;
}
