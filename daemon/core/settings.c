#include "daemon/core/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "proto/version.h"

#define EXIT_USAGE 2

/* ---- options ---- */

static void print_help(void)
{
    (void)printf(
        "usage: epd [--config FILE] [--KEY VALUE ...]\n"
        "       epd --check-config [--config FILE] | --print-config | --version | --help\n"
        "\n"
        "The expert-parallel communication daemon; runs in the foreground.\n"
        "SIGTERM, SIGINT: drain and stop; again: stop at once. SIGHUP: reload log_level.\n"
        "Every setting is also an option (--socket PATH, --devices N, --log-level debug),\n"
        "and an environment variable (EPD_SOCKET, EPD_DEVICES). They are:\n\n");
    epd_config_print_sample(stdout);
}

static int usage(const char *problem, const char *what)
{
    (void)fprintf(stderr, "epd: %s%s; try --help\n", problem, what);
    return EXIT_USAGE;
}

/* -1: go on; else the exit status. */
static int parse_option(struct epd_settings *o, char **argv, int *i)
{
    const char *name = argv[*i];
    const char *value = argv[*i + 1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return EXIT_SUCCESS;
    }
    if (strcmp(name, "--version") == 0) {
        (void)printf("epd %s (protocol %u, abi %u)\n", EPD_VERSION, EPD_PROTOCOL_VERSION,
                     EPD_ABI_VERSION);
        return EXIT_SUCCESS;
    }
    if (strcmp(name, "--check-config") == 0) {
        o->check_only = true;
        return -1;
    }
    if (strcmp(name, "--print-config") == 0) {
        epd_config_print_sample(stdout);
        return EXIT_SUCCESS;
    }
    if (strncmp(name, "--", 2) != 0 ||
        (strcmp(name, "--config") != 0 && !epd_config_is_key(name + 2)))
        return usage("unknown option ", name);
    if (value == NULL)
        return usage("no value after ", name);
    ++*i;
    if (strcmp(name, "--config") == 0) {
        o->config_path = value;
        return -1;
    }
    if (o->n_overrides == EPD_OVERRIDES_MAX)
        return usage("too many options", "");
    o->override[o->n_overrides++] = (struct epd_config_override){name + 2, value};
    return -1;
}

static int parse_options(struct epd_settings *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int status = parse_option(o, argv, &i);
        if (status >= 0)
            return status;
    }
    return -1;
}

/* ---- what the configuration leaves open ---- */

static enum epd_status set_string(char **at, const char *value, struct epd_error *err)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a setting");
    free(*at);
    *at = copy;
    return EPD_OK;
}

static enum epd_status resolve_engine(struct epd_config *c, struct epd_error *err)
{
    char path[4096 + 16];
    if (c->engine_path[0] == '\0') {
        ssize_t n = readlink("/proc/self/exe", path, 4096);
        if (n < 0)
            return epd_fail_errno(err, "engine_path: find the folder of epd");
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        epd_assert(slash != NULL);
        (void)snprintf(slash + 1, sizeof(path) - (size_t)(slash + 1 - path), "epd-engine");
        enum epd_status status = set_string(&c->engine_path, path, err);
        if (status != EPD_OK)
            return status;
    }
    if (access(c->engine_path, X_OK) != 0)
        return epd_fail_errno(err, "engine_path: %s", c->engine_path);
    return EPD_OK;
}

static enum epd_status resolve(struct epd_settings *d, struct epd_error *err)
{
    struct epd_config *c = &d->config;
    const char *problem;
    char host[256] = "localhost";
    if (epd_socket_path(c->socket, NULL, d->socket, sizeof(d->socket), &problem) != 0)
        return epd_fail(err, EPD_EINVAL, "%s", problem);
    if (c->workers == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        c->workers = cores > 0 ? (uint64_t)cores / c->devices : 1;
        if (c->workers == 0)
            c->workers = 1;
        if (c->workers > 64)
            c->workers = 64;
    }
    enum epd_status status = EPD_OK;
    if (c->node_name[0] == '\0') {
        (void)gethostname(host, sizeof(host) - 1); /* else the name above */
        status = set_string(&c->node_name, host, err);
    }
    if (status == EPD_OK && strcmp(c->backend, "auto") == 0)
        status = set_string(&c->backend, "host", err);
    if (status == EPD_OK)
        status = resolve_engine(c, err);
    return status;
}

/* ---- all together ---- */

int epd_settings_load(struct epd_settings *s, int argc, char **argv)
{
    struct epd_error err;
    int code = parse_options(s, argc, argv);
    if (code >= 0)
        return code;
    enum epd_status status =
        epd_config_load(&s->config, s->config_path, s->override, s->n_overrides, &err);
    if (status == EPD_OK)
        status = resolve(s, &err);
    if (status != EPD_OK)
        (void)fprintf(stderr, "epd: %s\n", err.message);
    if (status == EPD_OK && !s->check_only)
        return -1;
    epd_settings_fini(s);
    return status == EPD_OK ? EXIT_SUCCESS : EXIT_USAGE;
}

enum epd_status epd_settings_reload(const struct epd_settings *s, struct epd_config *out,
                                    struct epd_error *err)
{
    return epd_config_load(out, s->config_path, s->override, s->n_overrides, err);
}

void epd_settings_fini(struct epd_settings *s)
{
    epd_config_fini(&s->config);
}
