/* A private daemon for a test: own directory under /tmp, own socket, own configuration, log in a
 * file that is searched afterwards: a warning or an error that the test did not announce fails it.
 * Binaries come from EPD_BIN_DIR (default build/bin). Thread rule: the test's thread. */
#ifndef EPD_TESTS_HARNESS_H
#define EPD_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DAEMON_MAX_ALLOWED 16u

struct daemon_config {
    uint32_t devices;  /* 0: 1 */
    uint32_t workers;  /* threads a device; 0: 1 */
    const char *extra; /* lines "key = value\n", may be NULL */
    uint32_t no_wait;  /* 1: do not wait until it serves */
};

struct daemon {
    pid_t pid; /* 0: not running */
    char dir[64];
    char socket[96], config[96], log[96];
    /* Lines of the log that contain one of these are expected. */
    const char *allowed[DAEMON_MAX_ALLOWED];
    uint32_t n_allowed;
    long log_checked; /* offset up to which the log has been checked */
};

/* Make the directory, write the configuration, start, wait until it serves. Fails the test. */
void daemon_start(struct daemon *d, const struct daemon_config *config);
/* Start another process in the same directory after the first is gone (or while it is there, with
 * no_wait). The old pid is forgotten. */
void daemon_restart(struct daemon *d, bool wait);
/* SIGTERM; exit code must be 0 within the deadline; the log is checked; the directory removed. */
void daemon_stop(struct daemon *d);
/* SIGKILL and reap; no checks. */
void daemon_kill(struct daemon *d);
/* Remove the directory of a daemon that is not running any more; checks the log. */
void daemon_clean(struct daemon *d);

/* Announce: warnings and errors that contain `pattern` are part of the test. */
void daemon_allow(struct daemon *d, const char *pattern);
/* Fails the test on lines of level warn or error since the last call that were not announced, and
 * on sanitizer reports. */
void daemon_check_log(struct daemon *d);
/* true when the log contains the text. */
bool daemon_log_has(const struct daemon *d, const char *text);

/* The daemon's engine processes, oldest first; returns how many. (Which device is which: agent.h,
 * agent_status.) */
unsigned daemon_engines(const struct daemon *d, pid_t *out, unsigned max);

/* Path of a product binary; static buffer. When it does not exist the process ends: with 1 if
 * EPD_BIN_DIR says where it should be, else skipped (77). */
const char *product_binary(const char *name);

#endif
