#include "tests/support/procfs.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"

static bool read_text(pid_t pid, const char *name, char *buf, size_t n)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t got = fread(buf, 1, n - 1, f);
    (void)fclose(f);
    buf[got] = 0;
    return got > 0;
}

/* Text of /proc/PID/stat behind "(comm) ". */
static char *stat_tail(pid_t pid, char *buf, size_t n)
{
    if (!read_text(pid, "stat", buf, n))
        return NULL;
    char *tail = strrchr(buf, ')');
    return tail && tail[1] ? tail + 2 : NULL;
}

char procfs_state(pid_t pid)
{
    char buf[1024];
    char *tail = stat_tail(pid, buf, sizeof(buf));
    return tail ? tail[0] : 0;
}

bool proc_alive(pid_t pid)
{
    char state = procfs_state(pid);
    return state != 0 && state != 'Z' && state != 'X';
}

static unsigned count_dir(pid_t pid, const char *name)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    DIR *dir = opendir(path);
    check_true(dir != NULL, "opendir %s: %m", path);
    unsigned n = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += e->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

static uint64_t cpu_ticks(pid_t pid)
{
    char buf[1024];
    uint64_t user = 0, system = 0;
    char *tail = stat_tail(pid, buf, sizeof(buf));
    check_true(tail != NULL, "process %d is gone", (int)pid);
    /* Fields from 3 (state); utime is 14, stime 15. */
    char *save = NULL, *field = strtok_r(tail, " ", &save);
    for (int i = 3; field; i++, field = strtok_r(NULL, " ", &save)) {
        if (i == 14)
            user = strtoull(field, NULL, 10);
        if (i == 15)
            system = strtoull(field, NULL, 10);
    }
    return user + system;
}

static uint64_t rss_kb(pid_t pid)
{
    char buf[8192];
    check_true(read_text(pid, "status", buf, sizeof(buf)), "process %d is gone", (int)pid);
    const char *line = strstr(buf, "VmRSS:");
    return line ? strtoull(line + 6, NULL, 10) : 0;
}

struct procfs_usage procfs_usage(pid_t pid)
{
    return (struct procfs_usage){
        .fds = count_dir(pid, "fd"),
        .threads = count_dir(pid, "task"),
        .maps = procfs_maps(pid, "", NULL, 0),
        .rss_kb = rss_kb(pid),
        .ticks = cpu_ticks(pid),
    };
}

unsigned procfs_children(pid_t parent, const char *prefix, pid_t *out, unsigned max)
{
    DIR *dir = opendir("/proc");
    check_true(dir != NULL, "opendir /proc: %m");
    unsigned n = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char buf[1024];
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        char *tail = pid > 0 ? stat_tail(pid, buf, sizeof(buf)) : NULL;
        if (!tail || tail[0] == 'Z' || strtol(tail + 2, NULL, 10) != parent)
            continue;
        const char *comm = strchr(buf, '(');
        if (!comm || strncmp(comm + 1, prefix, strlen(prefix)) != 0)
            continue;
        if (n < max)
            out[n] = pid;
        n++;
    }
    (void)closedir(dir);
    return n < max ? n : max;
}

unsigned procfs_maps(pid_t pid, const char *needle, struct procfs_map *out, unsigned max)
{
    char path[64], line[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    check_true(f != NULL, "open %s: %m", path);
    unsigned n = 0;
    while (fgets(line, sizeof(line), f)) {
        if (!strstr(line, needle))
            continue;
        if (n < max) {
            struct procfs_map *m = &out[n];
            *m = (struct procfs_map){0};
            (void)sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %159[^\n]", &m->begin,
                         &m->end, m->perms, m->path);
        }
        n++;
    }
    (void)fclose(f);
    return n;
}

unsigned procfs_fds(pid_t pid, const char *needle)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    check_true(dir != NULL, "opendir %s: %m", path);
    unsigned n = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        char name[400], target[256];
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        ssize_t len = readlink(name, target, sizeof(target) - 1);
        if (len < 0)
            continue;
        target[len] = 0;
        n += strstr(target, needle) != NULL;
    }
    (void)closedir(dir);
    return n;
}
