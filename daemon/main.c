/* epd: the supervisor. Options, wiring, signals, and the one place where teardown is ordered:
 *   start  config, lock, loop, core (engines), gRPC server, sockets
 *   stop   readiness off, no new sessions -> sessions gone or drain_ms -> sockets closed -> engines
 *          stopped, sessions ended -> gRPC drained -> everything freed -> lock */
#define EPD_LOG_COMPONENT "main"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/config.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/base/util.h"
#include "daemon/core/core.h"
#include "daemon/ipc/listener.h"
#include "daemon/rpc/control.h"
#include "daemon/rpc/health.h"
#include "daemon/rpc/server.h"
#include "proto/sockpath.h"
#include "proto/version.h"

#define EXIT_USAGE 2
#define OVERRIDES_MAX 64u
#define METHODS_MAX (EPD_CONTROL_METHODS + EPD_HEALTH_METHODS)
#define LOCK_WAIT_MS 2000u
#define LISTEN_LATE_MS 1000u /* the sockets open by then even when an engine does not start */
#define DRAIN_POLL_MS 20u
#define RPC_GRACE_MS 1000u
#define RESUME_MS 100u
#define ACCEPT_BATCH 64u

struct options {
    const char *config_path;
    struct epd_config_override override[OVERRIDES_MAX];
    unsigned n_overrides;
    bool check_config, print_config;
};

enum timer { TIMER_LISTEN, TIMER_DRAIN, TIMER_WATCHDOG, TIMER_RESUME, TIMERS };
enum signal_index { SIG_TERM, SIG_INT, SIG_HUP, SIGNALS };

struct daemon {
    struct options options;
    struct epd_config config;
    char socket[EPD_SOCKPATH_MAX];
    int lock; /* owned */
    uv_loop_t loop;
    uv_timer_t timer[TIMERS];
    uv_signal_t signal[SIGNALS];
    uv_poll_t accept;
    struct epd_listener listener;
    bool listening, ready, draining, stopping;
    uint64_t drain_until_ns;
    struct epd_core *core;
    struct epd_control *control;
    struct epd_health *health;
    struct epd_rpc_server *server;
    struct epd_rpc_method method[METHODS_MAX];
};

/* ---- options ---- */

static void print_help(void)
{
    (void)printf("usage: epd [--config FILE] [--KEY VALUE ...]\n"
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
static int parse_option(struct options *o, char **argv, int *i)
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
        o->check_config = true;
        return -1;
    }
    if (strcmp(name, "--print-config") == 0) {
        o->print_config = true;
        return -1;
    }
    if (strncmp(name, "--", 2) != 0 || (strcmp(name, "--config") != 0 && !epd_config_is_key(name + 2)))
        return usage("unknown option ", name);
    if (value == NULL)
        return usage("no value after ", name);
    ++*i;
    if (strcmp(name, "--config") == 0) {
        o->config_path = value;
        return -1;
    }
    if (o->n_overrides == OVERRIDES_MAX)
        return usage("too many options", "");
    o->override[o->n_overrides++] = (struct epd_config_override){name + 2, value};
    return -1;
}

static int parse_options(struct options *o, int argc, char **argv)
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

static enum epd_status resolve(struct daemon *d, struct epd_error *err)
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

/* Two descriptors a connection, some a session and a chunk. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        log_warn("RLIMIT_NOFILE stays: %s", strerror(errno));
}

/* ---- the control socket ---- */

static void on_acceptable(uv_poll_t *poll, int status, int events);

static void on_resume(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    if (d->listening)
        (void)uv_poll_start(&d->accept, UV_READABLE, on_acceptable); /* the fd was accepted once */
}

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct daemon *d = poll->data;
    (void)status;
    (void)events;
    for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
        struct epd_error err;
        struct epd_peer peer;
        int fd = accept4(d->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            log_limited(EPD_LOG_ERROR, 1000, "no file descriptors left: raise LimitNOFILE");
            (void)uv_poll_stop(&d->accept); /* always succeeds on an open handle */
            (void)uv_timer_start(&d->timer[TIMER_RESUME], on_resume, RESUME_MS, 0);
            return;
        }
        if (fd < 0)
            return;
        if (epd_peer_of_socket(fd, &peer, &err) != EPD_OK) {
            log_limited(EPD_LOG_WARN, 1000, "connection without identity: %s", err.message);
            epd_close_fd(&fd);
        } else if (epd_rpc_server_add_connection(d->server, fd, &peer, &err) != EPD_OK) {
            log_limited(EPD_LOG_WARN, 1000, "connection refused: %s", err.message);
        }
    }
}

static enum epd_status open_sockets(struct daemon *d, struct epd_error *err)
{
    enum epd_status status = epd_core_listen(d->core, err);
    if (status == EPD_OK)
        status = epd_listener_open(&d->listener, d->socket, SOCK_STREAM,
                                   (mode_t)d->config.socket_mode, d->config.socket_group, err);
    if (status != EPD_OK)
        return status;
    int rc = uv_poll_init(&d->loop, &d->accept, d->listener.fd);
    if (rc != 0) {
        epd_listener_close(&d->listener);
        return epd_fail(err, EPD_ESYS, "watch %s: %s", d->socket, uv_strerror(rc));
    }
    d->accept.data = d;
    d->listening = true;
    (void)uv_poll_start(&d->accept, UV_READABLE, on_acceptable); /* the fd was accepted */
    log_info("listening on %s", d->socket);
    return EPD_OK;
}

static void close_socket(struct daemon *d)
{
    if (!d->listening)
        return;
    d->listening = false;
    (void)uv_poll_stop(&d->accept); /* always succeeds on an open handle */
    uv_close((uv_handle_t *)&d->accept, NULL);
    epd_listener_close(&d->listener);
}

/* ---- health and notification ---- */

static void begin_stop(struct daemon *d);

static void listen_now(struct daemon *d)
{
    struct epd_error err;
    if (d->listening || d->stopping)
        return;
    if (open_sockets(d, &err) == EPD_OK)
        return;
    log_error("%s", err.message);
    (void)fprintf(stderr, "epd: %s\n", err.message);
    begin_stop(d);
}

static void on_listen_late(uv_timer_t *timer)
{
    listen_now(timer->data);
}

static void tell_state(struct daemon *d)
{
    const bool serving = !d->draining && epd_core_all_running(d->core);
    const enum epd_health_state state = serving ? EPD_HEALTH_SERVING : EPD_HEALTH_NOT_SERVING;
    epd_health_set(d->health, "", state);
    epd_health_set(d->health, "readiness", state);
    epd_health_set(d->health, "epd.v1.Control", state);
    epd_notify("STATUS=%s, %llu devices", epd_core_state_name(epd_core_state(d->core)),
               (unsigned long long)d->config.devices);
    if (serving && d->listening && !d->ready) {
        d->ready = true;
        epd_notify("READY=1");
        log_info("ready: %llu devices", (unsigned long long)d->config.devices);
    }
}

static void on_core_changed(void *arg)
{
    struct daemon *d = arg;
    if (d->core == NULL || d->stopping)
        return;
    if (epd_core_started(d->core))
        listen_now(d);
    tell_state(d);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    epd_notify("WATCHDOG=1");
}

/* ---- the end ---- */

static void close_handles(struct daemon *d)
{
    for (unsigned i = 0; i < TIMERS; i++)
        uv_close((uv_handle_t *)&d->timer[i], NULL);
    for (unsigned i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&d->signal[i], NULL);
}

static void on_rpc_drained(void *arg)
{
    struct daemon *d = arg;
    epd_rpc_server_destroy(d->server);
    close_handles(d);
}

static void on_core_stopped(void *arg)
{
    struct daemon *d = arg;
    epd_control_end_streams(d->control);
    epd_rpc_server_drain(d->server, RPC_GRACE_MS, on_rpc_drained, d);
}

static void begin_stop(struct daemon *d)
{
    if (d->stopping)
        return;
    d->stopping = true;
    (void)uv_timer_stop(&d->timer[TIMER_DRAIN]); /* always succeeds */
    close_socket(d);
    epd_core_stop(d->core, on_core_stopped, d);
}

static void on_drain_poll(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    const unsigned sessions = epd_core_sessions(d->core);
    if (sessions != 0 && epd_now_ns() < d->drain_until_ns)
        return;
    if (sessions != 0)
        log_info("%u sessions are left after drain_ms; ending them", sessions);
    begin_stop(d);
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    if (d->draining) {
        log_info("signal %d again: leaving at once", number);
        epd_listener_close(&d->listener);
        char fd_socket[EPD_SOCKPATH_MAX + 4];
        (void)snprintf(fd_socket, sizeof(fd_socket), "%s" EPD_SOCKPATH_FD_SUFFIX, d->socket);
        (void)unlink(fd_socket); /* a stale socket would be replaced anyway */
        _exit(EXIT_FAILURE);     /* engines see EOF and leave */
    }
    log_info("signal %d: draining, %u sessions", number, epd_core_sessions(d->core));
    epd_notify("STOPPING=1");
    d->draining = true;
    d->drain_until_ns = epd_now_ns() + d->config.drain_ms * 1000000u;
    epd_core_drain(d->core);
    tell_state(d);
    (void)uv_timer_start(&d->timer[TIMER_DRAIN], on_drain_poll, 0, DRAIN_POLL_MS);
}

static void on_reload_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    struct epd_config fresh;
    struct epd_error err;
    enum epd_log_level level;
    (void)number;
    if (epd_config_load(&fresh, d->options.config_path, d->options.override,
                        d->options.n_overrides, &err) != EPD_OK)
        log_warn("reload: %s; nothing changed", err.message);
    else if (epd_log_level_parse(fresh.log_level, &level) == 0) {
        epd_log_set_level(level);
        log_info("reload: log_level is %s; other settings need a restart", fresh.log_level);
    }
    epd_config_fini(&fresh);
}

/* ---- start ---- */

static void init_handles(struct daemon *d)
{
    static const int number[SIGNALS] = {
        [SIG_TERM] = SIGTERM, [SIG_INT] = SIGINT, [SIG_HUP] = SIGHUP};
    for (unsigned i = 0; i < TIMERS; i++) {
        (void)uv_timer_init(&d->loop, &d->timer[i]); /* cannot fail */
        d->timer[i].data = d;
    }
    for (unsigned i = 0; i < SIGNALS; i++) {
        epd_assert(uv_signal_init(&d->loop, &d->signal[i]) == 0);
        d->signal[i].data = d;
        epd_assert(uv_signal_start(&d->signal[i],
                                   i == SIG_HUP ? on_reload_signal : on_stop_signal,
                                   number[i]) == 0);
    }
}

static bool open_to_others(const struct epd_config *c)
{
    if (strcmp(c->frame_guard, "auto") != 0)
        return strcmp(c->frame_guard, "on") == 0;
    return (c->socket_mode & 077u) != 0;
}

static enum epd_status create_server(struct daemon *d, struct epd_error *err)
{
    const struct epd_control_options control = {
        .core = d->core,
        .backend = d->config.backend,
        .node = d->config.node_name,
        .socket = d->socket,
    };
    unsigned n = EPD_HEALTH_METHODS;
    d->control = epd_control_create(&control);
    d->health = epd_health_create();
    if (d->health == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the health service");
    epd_health_methods(d->health, d->method);
    epd_control_methods(d->control, d->method, &n, METHODS_MAX);
    const struct epd_rpc_options options = {
        .methods = d->method,
        .n_methods = n,
        .frame_guard = open_to_others(&d->config),
        .idle_ms = d->config.idle_ms,
        .tcp_address = d->config.health_tcp[0] != '\0' ? d->config.health_tcp : NULL,
    };
    return epd_rpc_server_create(&d->loop, &options, &d->server, err);
}

static enum epd_status start(struct daemon *d, struct epd_error *err)
{
    const struct epd_core_options core = {
        .loop = &d->loop,
        .config = &d->config,
        .socket = d->socket,
        .lock_fd = d->lock,
        .changed = on_core_changed,
        .arg = d,
    };
    enum epd_status status = epd_core_create(&core, &d->core, err);
    if (status == EPD_OK)
        status = create_server(d, err);
    if (status != EPD_OK)
        return status;
    const uint64_t watchdog = epd_notify_watchdog_ms();
    if (watchdog != 0)
        (void)uv_timer_start(&d->timer[TIMER_WATCHDOG], on_watchdog, watchdog, watchdog);
    (void)uv_timer_start(&d->timer[TIMER_LISTEN], on_listen_late, LISTEN_LATE_MS, 0);
    epd_health_set(d->health, "liveness", EPD_HEALTH_SERVING);
    epd_core_start(d->core);
    return EPD_OK;
}

/* The loop ends when every handle is closed. */
static int run(struct daemon *d)
{
    struct epd_error err;
    epd_assert(uv_loop_init(&d->loop) == 0);
    init_handles(d);
    int code = EXIT_SUCCESS;
    if (start(d, &err) == EPD_OK) {
        (void)uv_run(&d->loop, UV_RUN_DEFAULT); /* 0: nothing is left */
        code = d->draining ? EXIT_SUCCESS : EXIT_FAILURE;
    } else {
        (void)fprintf(stderr, "epd: %s\n", err.message);
        close_handles(d);
        code = EXIT_FAILURE;
    }
    struct epd_core *core = d->core;
    d->core = NULL;
    epd_control_destroy(d->control);
    epd_health_destroy(d->health);
    epd_core_destroy(core);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    epd_assert(uv_loop_close(&d->loop) == 0);
    return code;
}

static int serve(struct daemon *d)
{
    struct epd_error err;
    (void)signal(SIGPIPE, SIG_IGN); /* cannot fail */
    raise_descriptors();
    if (epd_lock_take(d->socket, LOCK_WAIT_MS, &d->lock, &err) != EPD_OK) {
        (void)fprintf(stderr, "epd: %s\n", err.message);
        return EXIT_FAILURE;
    }
    log_info("epd %s, pid %d, backend %s, %llu devices, %llu workers each", EPD_VERSION,
             (int)getpid(), d->config.backend, (unsigned long long)d->config.devices,
             (unsigned long long)d->config.workers);
    int code = run(d);
    epd_close_fd(&d->lock);
    log_info("stopped");
    return code;
}

int main(int argc, char **argv)
{
    static struct daemon d = {.lock = -1, .listener = {.fd = -1}};
    struct epd_error err;
    enum epd_log_level level = EPD_LOG_INFO;
    int code = parse_options(&d.options, argc, argv);
    if (code >= 0)
        return code;
    if (d.options.print_config) {
        epd_config_print_sample(stdout);
        return EXIT_SUCCESS;
    }
    enum epd_status status = epd_config_load(&d.config, d.options.config_path, d.options.override,
                                             d.options.n_overrides, &err);
    if (status == EPD_OK)
        status = resolve(&d, &err);
    if (status != EPD_OK) {
        (void)fprintf(stderr, "epd: %s\n", err.message);
        epd_config_fini(&d.config);
        return EXIT_USAGE;
    }
    (void)epd_log_level_parse(d.config.log_level, &level); /* config checked the name */
    epd_log_init(level, NULL);
    code = d.options.check_config ? EXIT_SUCCESS : serve(&d);
    epd_config_fini(&d.config);
    return code;
}
