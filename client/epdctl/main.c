/* epdctl: what operators and scripts ask the daemon. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/epdctl/ctl.h"
#include "proto/version.h"

#define DEFAULT_TIMEOUT_MS 5000

static const struct ctl_verb *const g_verbs[] = {
    &ctl_verb_version, &ctl_verb_status,   &ctl_verb_health,        &ctl_verb_groups,
    &ctl_verb_group,   &ctl_verb_sessions, &ctl_verb_devices,       &ctl_verb_tables,
    &ctl_verb_replay,  &ctl_verb_bench,    &ctl_verb_replay_worker,
};
#define N_VERBS (sizeof(g_verbs) / sizeof(g_verbs[0]))

static void print_help(FILE *out)
{
    (void)fprintf(out, "usage: epdctl [options] VERB [arguments]\n\nverbs:\n");
    for (size_t i = 0; i < N_VERBS; i++)
        if (!g_verbs[i]->hidden)
            (void)fprintf(out, "  %-9s %s\n", g_verbs[i]->name, g_verbs[i]->summary);
    (void)fprintf(out,
                  "\noptions:\n"
                  "  --socket PATH   control socket (else EPD_SOCKET, else the default)\n"
                  "  --timeout MS    of one call to the daemon (default 5000)\n"
                  "  --json          machine-readable, complete also on failure\n"
                  "  --strict        exit 4 when the daemon is degraded\n"
                  "  --no-color      never colour\n"
                  "  --help, --version\n\n"
                  "exit: 0 healthy or done, 1 unhealthy or failed, 2 usage, 3 daemon "
                  "unreachable,\n"
                  "      4 degraded (--strict), 5 permission, 6 version mismatch, 7 timeout\n");
}

static const struct ctl_verb *find_verb(const char *name)
{
    for (size_t i = 0; name != NULL && i < N_VERBS; i++)
        if (strcmp(g_verbs[i]->name, name) == 0)
            return g_verbs[i];
    return NULL;
}

static bool parse_timeout(const char *text, int64_t *ns_out)
{
    char *end;
    errno = 0;
    long ms = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || ms < 1 || ms > 86400000)
        return false;
    *ns_out = ms * 1000000ll;
    return true;
}

enum { OPT_SOCKET = 1, OPT_TIMEOUT, OPT_JSON, OPT_STRICT, OPT_NO_COLOR, OPT_HELP, OPT_VERSION };
static const struct option g_options[] = {
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"json", no_argument, NULL, OPT_JSON},
    {"strict", no_argument, NULL, OPT_STRICT},
    {"no-color", no_argument, NULL, OPT_NO_COLOR},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

/* The common options, wherever they stand; argv keeps the rest. 0: go on; else exit code + 1. */
static int take_common(struct ctl *ctl, int argc, char **argv, int *rest_out)
{
    int kept = 1;
    bool help = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const struct option *o = g_options;
        size_t n = 0;
        for (; o->name != NULL; o++) {
            n = strlen(o->name);
            if (strncmp(a, "--", 2) == 0 && strncmp(a + 2, o->name, n) == 0 &&
                (a[2 + n] == 0 || (a[2 + n] == '=' && o->has_arg)))
                break;
        }
        if (o->name == NULL) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *value = a[2 + n] == '='              ? a + 3 + n
                            : o->has_arg && i + 1 < argc ? argv[++i]
                                                         : NULL;
        if (o->has_arg && value == NULL) {
            (void)fprintf(stderr, "epdctl: --%s needs a value\n", o->name);
            return CTL_USAGE + 1;
        }
        if (o->val == OPT_SOCKET)
            ctl->socket = value;
        else if (o->val == OPT_TIMEOUT && !parse_timeout(value, &ctl->timeout_ns)) {
            (void)fprintf(stderr, "epdctl: --timeout is \"%s\", must be 1..86400000 (ms)\n", value);
            return CTL_USAGE + 1;
        }
        ctl->json = ctl->json || o->val == OPT_JSON;
        ctl->strict = ctl->strict || o->val == OPT_STRICT;
        ctl->color = ctl->color && o->val != OPT_NO_COLOR;
        help = help || o->val == OPT_HELP;
        if (o->val == OPT_VERSION) {
            (void)printf("epdctl %s\n", EPD_VERSION);
            return CTL_OK + 1;
        }
    }
    *rest_out = kept;
    const struct ctl_verb *verb = kept > 1 ? find_verb(argv[1]) : NULL;
    if (!help)
        return 0;
    if (verb != NULL)
        (void)printf("usage: epdctl %s %s\n\n%s.\n%s", verb->name, verb->args, verb->summary,
                     verb->help != NULL ? verb->help : "");
    else
        print_help(stdout);
    return CTL_OK + 1;
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.timeout_ns = DEFAULT_TIMEOUT_MS * 1000000ll,
                      .color = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL};
    int rest = argc;
    int code = take_common(&ctl, argc, argv, &rest);
    if (code != 0)
        return code - 1;
    if (rest < 2) {
        print_help(stderr);
        return CTL_USAGE;
    }
    const struct ctl_verb *verb = find_verb(argv[1]);
    if (verb == NULL) {
        (void)fprintf(stderr, "epdctl: unknown verb \"%s\" (epdctl --help lists them)\n", argv[1]);
        return CTL_USAGE;
    }
    ctl.verb = verb->name;
    ctl.argc = rest - 1;
    ctl.argv = argv + 1;
    code = verb->run(&ctl);
    epd_admin_close(ctl.admin);
    if (fflush(stdout) != 0 && code == CTL_OK)
        code = CTL_FAILED;
    return code;
}
