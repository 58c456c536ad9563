/* The command line of epd, its configuration, and what that leaves open (socket path, engine
 * program, worker threads, node name, backend). Thread rule: main, before the loop runs. */
#ifndef EPD_CORE_SETTINGS_H
#define EPD_CORE_SETTINGS_H

#include <stdbool.h>

#include "daemon/base/config.h"
#include "proto/sockpath.h"

#define EPD_OVERRIDES_MAX 64u

struct epd_settings {
    struct epd_config config; /* resolved */
    char socket[EPD_SOCKPATH_MAX];
    const char *config_path; /* borrowed from argv; NULL: none */
    struct epd_config_override override[EPD_OVERRIDES_MAX];
    unsigned n_overrides;
    bool check_only;
};

/* -1: go on; else the status to exit with: all is said (help, version, checks, errors: 2). */
int epd_settings_load(struct epd_settings *settings, int argc, char **argv);
/* The configuration as it is now, unresolved; the caller finishes it. */
enum epd_status epd_settings_reload(const struct epd_settings *settings, struct epd_config *out,
                                    struct epd_error *err);
void epd_settings_fini(struct epd_settings *settings);

#endif
