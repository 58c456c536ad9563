#include "tests/support/harness.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/proc.h"
#include "tests/support/procfs.h"

#define READY_MS 10000
#define STOP_MS 12000

static const char *bin_dir(void)
{
    const char *dir = getenv("EPD_BIN_DIR");
    return dir ? dir : "build/bin";
}

const char *product_binary(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", bin_dir(), name);
    if (access(path, X_OK) != 0) {
        const bool told = getenv("EPD_BIN_DIR") != NULL;
        (void)fprintf(stderr, "%s%s: no such program%s\n", told ? "" : "skipped: ", path,
                      told ? "" : " (set EPD_BIN_DIR)");
        exit(told ? 1 : SKIP_EXIT);
    }
    return path;
}

/* ---- start ------------------------------------------------------------------------------ */

static const char *backend(void)
{
    const char *name = getenv("EPD_TEST_BACKEND");
    return name ? name : "host";
}

static void write_config(const struct daemon *d, const struct daemon_config *c)
{
    FILE *f = fopen(d->config, "we");
    check_true(f != NULL, "open %s: %m", d->config);
    const char *extra = c->extra ? c->extra : "";
    (void)fprintf(f, "socket = %s\nbackend = %s\ndevices = %u\nworkers = %u\nlog_level = info\n",
                  d->socket, backend(), c->devices ? c->devices : 1, c->workers ? c->workers : 1);
    if (!strstr(extra, "socket_mode"))
        (void)fprintf(f, "socket_mode = 0600\n");
    if (!strstr(extra, "revoke_ms"))
        (void)fprintf(f, "revoke_ms = %d\n", slow_ms(100));
    (void)fprintf(f, "%s", extra);
    check_true(fclose(f) == 0, "write %s: %m", d->config);
}

/* Serving: the socket takes connections. (The daemon binds it when its engines are up.) */
static bool connects(void *arg)
{
    const struct daemon *d = arg;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", d->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
    if (fd >= 0)
        (void)close(fd);
    return ok;
}

static void print_log(const struct daemon *d)
{
    char line[512];
    FILE *f = fopen(d->log, "re");
    if (!f)
        return;
    while (fgets(line, sizeof(line), f))
        (void)fprintf(stderr, "  daemon: %s", line);
    (void)fclose(f);
}

static void wait_ready(struct daemon *d)
{
    uint64_t start = now_ns();
    while (!connects(d)) {
        int code = proc_wait(d->pid, 5);
        bool late = ms_since(start) > slow_ms(READY_MS);
        if (code == PROC_RUNNING && !late)
            continue;
        if (code != PROC_RUNNING)
            d->pid = 0;
        print_log(d);
        check_fail(late ? "daemon does not serve after %.0f ms (exit %d)"
                        : "daemon left after %.0f ms with %d",
                   ms_since(start), code);
    }
}

void daemon_restart(struct daemon *d, bool wait)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s", product_binary("epd"));
    char *argv[] = {path, (char *)"--config", d->config, NULL};
    d->pid = proc_exec(argv, d->log);
    if (wait)
        wait_ready(d);
}

/* Where libepd in this program finds its control part. */
static void find_libraries(void)
{
    char path[512];
    const char *dir = getenv("EPD_LIB_DIR");
    if (dir)
        (void)snprintf(path, sizeof(path), "%s/libepd-rpc.so", dir);
    else
        (void)snprintf(path, sizeof(path), "%s/../lib/libepd-rpc.so", bin_dir());
    (void)setenv("EPD_RPC_LIB", path, 0);
}

void daemon_start(struct daemon *d, const struct daemon_config *config)
{
    static const struct daemon_config defaults;
    find_libraries();
    if (!config)
        config = &defaults;
    *d = (struct daemon){0};
    (void)snprintf(d->dir, sizeof(d->dir), "/tmp/epd-t-XXXXXX");
    check_true(mkdtemp(d->dir) != NULL, "mkdtemp: %m");
    (void)snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
    (void)snprintf(d->config, sizeof(d->config), "%s/conf", d->dir);
    (void)snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    write_config(d, config);
    daemon_restart(d, !config->no_wait);
}

/* ---- log -------------------------------------------------------------------------------- */

void daemon_allow(struct daemon *d, const char *pattern)
{
    check_true(d->n_allowed < DAEMON_MAX_ALLOWED, "too many allowed patterns");
    d->allowed[d->n_allowed++] = pattern;
}

static bool suspicious(const char *line)
{
    /* "TIME WARN component: ..." or "<4>WARN component: ..."; sanitizers print their name. */
    static const char *const marks[] = {"WARN",      "warn ",          "ERROR", "error ",
                                        "Sanitizer", "runtime error:", "assert"};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        const char *at = strstr(line, marks[i]);
        /* Levels stand before the component's colon; the words in a text are no level. */
        const char *colon = strstr(line, ": ");
        if (at && (i >= 4 || (colon && at < colon)))
            return true;
    }
    return false;
}

static bool announced(const struct daemon *d, const char *line)
{
    if (strstr(line, "Sanitizer") || strstr(line, "runtime error:"))
        return false;
    for (uint32_t i = 0; i < d->n_allowed; i++)
        if (strstr(line, d->allowed[i]))
            return true;
    return false;
}

void daemon_check_log(struct daemon *d)
{
    char line[1024], first[1024] = "";
    if (d->pid != 0 && !proc_alive(d->pid)) {
        const int code = proc_wait(d->pid, 100);
        d->pid = 0;
        print_log(d);
        check_fail("the daemon left on its own with %d", code);
    }
    FILE *f = fopen(d->log, "re");
    check_true(f != NULL, "open %s: %m", d->log);
    (void)fseek(f, d->log_checked, SEEK_SET);
    unsigned bad = 0;
    while (fgets(line, sizeof(line), f)) {
        if (!suspicious(line) || announced(d, line))
            continue;
        (void)fprintf(stderr, "  unexpected in the log: %s", line);
        if (bad++ == 0)
            (void)snprintf(first, sizeof(first), "%s", line);
    }
    d->log_checked = ftell(f);
    (void)fclose(f);
    check_true(bad == 0, "%u unexpected log lines, the first: %s", bad, first);
}

bool daemon_log_has(const struct daemon *d, const char *text)
{
    char line[1024];
    bool found = false;
    FILE *f = fopen(d->log, "re");
    check_true(f != NULL, "open %s: %m", d->log);
    while (!found && fgets(line, sizeof(line), f))
        found = strstr(line, text) != NULL;
    (void)fclose(f);
    return found;
}

/* ---- stop ------------------------------------------------------------------------------- */

static void remove_dir(const struct daemon *d)
{
    DIR *dir = opendir(d->dir);
    if (!dir)
        return;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), e->d_name, 0); /* what stays is seen in /tmp */
    (void)closedir(dir);
    (void)rmdir(d->dir);
}

void daemon_clean(struct daemon *d)
{
    daemon_check_log(d);
    if (!getenv("EPD_TEST_KEEP"))
        remove_dir(d);
}

void daemon_stop(struct daemon *d)
{
    pid_t engines[16];
    unsigned n = daemon_engines(d, engines, 16);
    check_true(d->pid != 0 && kill(d->pid, SIGTERM) == 0, "there is no daemon to stop");
    int code = proc_wait(d->pid, slow_ms(STOP_MS));
    if (code == PROC_RUNNING)
        print_log(d);
    else
        d->pid = 0;
    check_int(code, 0, "exit code of the daemon after SIGTERM");
    for (unsigned i = 0; i < n; i++)
        check_true(!proc_alive(engines[i]), "engine %d outlives its daemon", (int)engines[i]);
    daemon_clean(d);
}

void daemon_kill(struct daemon *d)
{
    proc_kill(d->pid);
    d->pid = 0;
}

unsigned daemon_engines(const struct daemon *d, pid_t *out, unsigned max)
{
    unsigned n = procfs_children(d->pid, "epd-engine", out, max);
    for (unsigned i = 1; i < n; i++)
        for (unsigned j = i; j > 0 && out[j - 1] > out[j]; j--) {
            pid_t t = out[j];
            out[j] = out[j - 1];
            out[j - 1] = t;
        }
    return n;
}
