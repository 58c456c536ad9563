/* Settings of the daemon: one table (config.c) gives the file parser, the environment (EPD_<KEY>),
 * the command line (--key value, with - for _), --print-config and the checks.
 * Precedence: command line, environment, file, default. An unknown key or a bad value is an error
 * that names where it stands, the key, the value and the rule. */
#ifndef EPD_BASE_CONFIG_H
#define EPD_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/base/error.h"

struct epd_config {
    char *socket; /* strings: owned, never NULL, "" = unset */
    char *socket_group;
    char *backend; /* auto | host | cuda */
    char *log_level;
    char *node_name;
    char *engine_path;
    char *placement;   /* block | roundrobin */
    char *frame_guard; /* auto | on | off */
    char *health_tcp;
    char *admin_group;
    uint64_t socket_mode; /* octal in the file */
    uint64_t devices, workers, spin_us;
    uint64_t max_sessions, max_groups, max_sessions_per_uid, max_groups_per_uid;
    uint64_t max_bytes_per_uid, chunk_bytes;
    uint64_t engine_stall_ms, revoke_ms, restart_backoff_ms, restart_max, drain_ms, idle_ms;
};

/* One override from the command line. */
struct epd_config_override {
    const char *key, *value;
};

/* Defaults, then the file (path NULL: none), the environment, the overrides. On failure *config is
 * empty (fini is fine). */
enum epd_status epd_config_load(struct epd_config *config, const char *path,
                                const struct epd_config_override *overrides, unsigned n_overrides,
                                struct epd_error *err);
void epd_config_fini(struct epd_config *config);
/* Is `name` (either spelling) a key? */
bool epd_config_is_key(const char *name);
/* All keys with default, range and help, in the file's format. */
void epd_config_print_sample(FILE *out);
/* The current values, in the file's format. */
void epd_config_dump(const struct epd_config *config, FILE *out);

#endif
