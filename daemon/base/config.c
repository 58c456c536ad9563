#include "daemon/base/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/util.h"

enum type { STRING, CHOICE, NUMBER, BYTES, OCTAL };

struct key {
    const char *name;
    enum type type;
    size_t offset;
    const char *fallback;
    uint64_t min, max;
    const char *choices; /* "a|b|c" */
    const char *help;
};

#define AT(field) offsetof(struct epd_config, field)
static const struct key g_keys[] = {
    {"socket", STRING, AT(socket), "", 0, 0, NULL,
     "path of the control socket; empty: EPD_SOCKET, /run/epd/epd.sock as root, else "
     "$XDG_RUNTIME_DIR/epd/epd.sock"},
    {"socket_mode", OCTAL, AT(socket_mode), "0660", 0, 0777, NULL, "mode of the sockets"},
    {"socket_group", STRING, AT(socket_group), "", 0, 0, NULL,
     "group of the sockets; empty: as is"},
    {"backend", CHOICE, AT(backend), "auto", 0, 0, "auto|host|cuda", "where the engines run"},
    {"devices", NUMBER, AT(devices), "1", 1, 16, NULL, "host devices (engines)"},
    {"workers", NUMBER, AT(workers), "1", 0, 64, NULL,
     "threads of a host engine; 0: cores divided by devices"},
    {"spin_us", NUMBER, AT(spin_us), "0", 0, 1000000, NULL,
     "how long an engine polls before it sleeps; 0: 0 or 20, by the number of cores"},
    {"placement", CHOICE, AT(placement), "block", 0, 0, "block|roundrobin",
     "how seats are spread over devices when a group does not say"},
    {"log_level", CHOICE, AT(log_level), "info", 0, 0, "error|warn|info|debug",
     "reloaded by SIGHUP"},
    {"node_name", STRING, AT(node_name), "", 0, 0, NULL, "name of this node; empty: the host name"},
    {"admin_group", STRING, AT(admin_group), "epd-admin", 0, 0, NULL,
     "group that may use administrative calls"},
    {"max_sessions", NUMBER, AT(max_sessions), "256", 1, 65536, NULL, "sessions at once"},
    {"max_sessions_per_uid", NUMBER, AT(max_sessions_per_uid), "64", 1, 65536, NULL,
     "sessions of one user at once"},
    {"max_groups", NUMBER, AT(max_groups), "256", 1, 65536, NULL, "groups at once"},
    {"max_groups_per_uid", NUMBER, AT(max_groups_per_uid), "64", 1, 65536, NULL,
     "groups of one user at once"},
    {"max_bytes_per_uid", BYTES, AT(max_bytes_per_uid), "64G", 1u << 20, UINT64_MAX, NULL,
     "session memory of one user (K, M, G suffixes)"},
    {"chunk_bytes", BYTES, AT(chunk_bytes), "64M", 2u << 20, 1ull << 40, NULL,
     "size of a chunk of buffers"},
    {"engine_path", STRING, AT(engine_path), "", 0, 0, NULL,
     "epd-engine program; empty: beside epd"},
    {"engine_stall_ms", NUMBER, AT(engine_stall_ms), "5000", 100, 600000, NULL,
     "an engine that does not answer for this long is restarted"},
    {"revoke_ms", NUMBER, AT(revoke_ms), "100", 1, 60000, NULL,
     "an engine that does not stop writing within this time is killed"},
    {"restart_backoff_ms", NUMBER, AT(restart_backoff_ms), "50", 1, 60000, NULL,
     "wait before an engine's second restart; doubles up to 2 s"},
    {"restart_max", NUMBER, AT(restart_max), "10", 1, 1000, NULL,
     "restarts a minute before a device counts as failed"},
    {"drain_ms", NUMBER, AT(drain_ms), "5000", 0, 600000, NULL,
     "how long SIGTERM waits for sessions to end"},
    {"idle_ms", NUMBER, AT(idle_ms), "600000", 100, 86400000, NULL,
     "a control connection without calls is closed after this time (sessions stay)"},
    {"frame_guard", CHOICE, AT(frame_guard), "auto", 0, 0, "auto|on|off",
     "HTTP/2 frame counting in front of gRPC; auto: when the socket is open to others"},
    {"health_tcp", STRING, AT(health_tcp), "", 0, 0, NULL,
     "address:port of grpc.health.v1 over TCP; empty: off"},
};

static char **string_at(struct epd_config *c, const struct key *k)
{
    return (char **)(void *)((char *)c + k->offset);
}
static uint64_t *number_at(struct epd_config *c, const struct key *k)
{
    return (uint64_t *)(void *)((char *)c + k->offset);
}
static bool is_string(const struct key *k)
{
    return k->type == STRING || k->type == CHOICE;
}

/* log_level, log-level and LOG_LEVEL are the same key. */
static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_keys); i++) {
        const char *a = g_keys[i].name, *b = name;
        while (*a != 0 && *b != 0 && (*a == tolower((unsigned char)*b) || (*a == '_' && *b == '-')))
            a++, b++;
        if (*a == 0 && *b == 0)
            return &g_keys[i];
    }
    return NULL;
}

bool epd_config_is_key(const char *name)
{
    return find_key(name) != NULL;
}

static bool in_choices(const char *choices, const char *value)
{
    const size_t n = strlen(value);
    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strcspn(at, "|") == n && n > 0 && strncmp(at, value, n) == 0)
            return true;
    }
    return false;
}

static bool parse_number(const struct key *k, const char *value, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)value[0]))
        return false;
    uint64_t n = strtoull(value, &end, k->type == OCTAL ? 8 : 10);
    const char *suffix = k->type == BYTES ? strchr("KMGT", toupper((unsigned char)*end)) : NULL;
    if (suffix != NULL && *end != 0) {
        const unsigned shift = toupper((unsigned char)*end) == 'K'   ? 10u
                               : toupper((unsigned char)*end) == 'M' ? 20u
                               : toupper((unsigned char)*end) == 'G' ? 30u
                                                                     : 40u;
        if (n > UINT64_MAX >> shift)
            return false;
        n <<= shift;
        end++;
    }
    if (errno != 0 || *end != 0 || n < k->min || n > k->max)
        return false;
    *out = n;
    return true;
}

static enum epd_status set(struct epd_config *c, const char *where, const char *name,
                           const char *value, struct epd_error *err)
{
    const struct key *k = find_key(name);
    if (k == NULL)
        return epd_fail(err, EPD_EINVAL, "%s: unknown key %s (epd --print-config lists all)", where,
                        name);
    if (k->type == CHOICE && !in_choices(k->choices, value))
        return epd_fail(err, EPD_EINVAL, "%s: %s is \"%s\", must be %s", where, k->name, value,
                        k->choices);
    if (is_string(k)) {
        char *copy = strdup(value);
        if (copy == NULL)
            return epd_fail(err, EPD_ENOMEM, "no memory for %s", k->name);
        free(*string_at(c, k));
        *string_at(c, k) = copy;
        return EPD_OK;
    }
    if (!parse_number(k, value, number_at(c, k)))
        return epd_fail(err, EPD_EINVAL,
                        k->type == OCTAL ? "%s: %s is \"%s\", must be octal %" PRIo64 "..%" PRIo64
                                         : "%s: %s is \"%s\", must be %" PRIu64 "..%" PRIu64,
                        where, k->name, value, k->min, k->max);
    return EPD_OK;
}

struct file {
    struct epd_config *config;
    const char *path;
    unsigned line;
    struct epd_error *err;
    enum epd_status status;
};

/* "path:line"; of a long path the end, so that key and value still fit into the message. */
static void say_where(const struct file *f, char *buf, size_t len)
{
    const size_t n = strlen(f->path), room = len - 16;
    (void)snprintf(buf, len, "%s%s:%u", n > room ? "..." : "", f->path + (n > room ? n - room : 0),
                   f->line);
}

static int on_key(void *user, const char *section, const char *name, const char *value)
{
    struct file *f = user;
    char where[80];
    say_where(f, where, sizeof(where));
    (void)section; /* refused before */
    f->status = set(f->config, where, name, value != NULL ? value : "", f->err);
    return f->status == EPD_OK;
}

/* The packaged inih cuts lines at 200 bytes, and would take the rest for another line. */
#define LINE_MAX_BYTES 199

static enum epd_status on_line(struct file *f, const char *line, size_t len)
{
    char where[80];
    const char *first = line + strspn(line, " \t\r\n");
    say_where(f, where, sizeof(where));
    if (*first == '#' || *first == ';')
        return EPD_OK;
    if (*first == '[')
        return epd_fail(f->err, EPD_EINVAL, "%s: sections are not used: remove the line", where);
    if (len > LINE_MAX_BYTES)
        return epd_fail(f->err, EPD_EINVAL, "%s: the line has %zu bytes, at most %d", where, len,
                        LINE_MAX_BYTES);
    if (strlen(line) != len)
        return epd_fail(f->err, EPD_EINVAL, "%s: the line contains a zero byte", where);
    if (ini_parse_string(line, on_key, f) != 0 && f->status == EPD_OK)
        return epd_fail(f->err, EPD_EINVAL, "%s: not of the form key = value", where);
    return f->status;
}

/* One line at a time, because the packaged inih does not tell its handler the line. */
static enum epd_status load_file(struct epd_config *c, const char *path, struct epd_error *err)
{
    struct file f = {.config = c, .path = path, .err = err};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return epd_fail_errno(err, "config file %s", path);
    while (f.status == EPD_OK && (n = getline(&line, &cap, in)) >= 0) {
        f.line++;
        f.status = on_line(&f, line, (size_t)n);
    }
    if (f.status == EPD_OK && ferror(in))
        f.status = epd_fail_errno(err, "config file %s", path);
    free(line);
    (void)fclose(in);
    return f.status;
}

static enum epd_status load_environment(struct epd_config *c, struct epd_error *err)
{
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_keys); i++) {
        char name[64] = "EPD_";
        for (size_t j = 0; g_keys[i].name[j] != 0 && j + 5 < sizeof(name); j++)
            name[4 + j] = (char)toupper((unsigned char)g_keys[i].name[j]);
        const char *value = getenv(name);
        if (value == NULL || value[0] == 0)
            continue;
        enum epd_status status = set(c, name, g_keys[i].name, value, err);
        if (status != EPD_OK)
            return status;
    }
    return EPD_OK;
}

enum epd_status epd_config_load(struct epd_config *config, const char *path,
                                const struct epd_config_override *overrides, unsigned n_overrides,
                                struct epd_error *err)
{
    memset(config, 0, sizeof(*config));
    enum epd_status status = EPD_OK;
    for (size_t i = 0; status == EPD_OK && i < EPD_ARRAY_LEN(g_keys); i++)
        status = set(config, "default", g_keys[i].name, g_keys[i].fallback, err);
    if (status == EPD_OK && path != NULL)
        status = load_file(config, path, err);
    if (status == EPD_OK)
        status = load_environment(config, err);
    for (unsigned i = 0; status == EPD_OK && i < n_overrides; i++)
        status = set(config, "command line", overrides[i].key, overrides[i].value, err);
    if (status != EPD_OK)
        epd_config_fini(config);
    return status;
}

void epd_config_fini(struct epd_config *config)
{
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_keys); i++)
        if (is_string(&g_keys[i]))
            free(*string_at(config, &g_keys[i]));
    memset(config, 0, sizeof(*config));
}

void epd_config_print_sample(FILE *out)
{
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_keys); i++) {
        const struct key *k = &g_keys[i];
        (void)fprintf(out, "# %s", k->help);
        if (k->choices != NULL)
            (void)fprintf(out, " (%s)", k->choices);
        (void)fprintf(out, "\n# %s = %s\n\n", k->name, k->fallback);
    }
}

void epd_config_dump(const struct epd_config *config, FILE *out)
{
    struct epd_config copy = *config; /* read only, through the same accessors */
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_keys); i++) {
        const struct key *k = &g_keys[i];
        if (is_string(k))
            (void)fprintf(out, "%s = %s\n", k->name, *string_at(&copy, k));
        else
            (void)fprintf(out, k->type == OCTAL ? "%s = 0%" PRIo64 "\n" : "%s = %" PRIu64 "\n",
                          k->name, *number_at(&copy, k));
    }
}
