/* What /proc says about another process. All functions fail the test when the process is gone,
 * except proc_alive and procfs_children. */
#ifndef EPD_TESTS_PROCFS_H
#define EPD_TESTS_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct procfs_usage {
    unsigned fds, threads, maps;
    uint64_t rss_kb;
    uint64_t ticks; /* user + system, of sysconf(_SC_CLK_TCK) a second */
};

struct procfs_usage procfs_usage(pid_t pid);
/* true while the process exists and is not a zombie. */
bool proc_alive(pid_t pid);
/* State letter of /proc/PID/stat, 0 when gone. */
char procfs_state(pid_t pid);
/* Direct children whose comm begins with `prefix`; returns how many were written. */
unsigned procfs_children(pid_t parent, const char *prefix, pid_t *out, unsigned max);

struct procfs_map {
    uint64_t begin, end;
    char perms[5];
    char path[160];
};
/* Mappings of `pid` whose path contains `needle`; returns how many there are (may exceed max). */
unsigned procfs_maps(pid_t pid, const char *needle, struct procfs_map *out, unsigned max);
/* Targets of /proc/PID/fd/ that contain `needle`. */
unsigned procfs_fds(pid_t pid, const char *needle);

#endif
