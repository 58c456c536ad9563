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

#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/base/util.h"
#include "daemon/core/core.h"
#include "daemon/core/settings.h"
#include "daemon/ipc/listener.h"
#include "daemon/rpc/control.h"
#include "daemon/rpc/health.h"
#include "daemon/rpc/server.h"
#include "proto/sockpath.h"
#include "proto/version.h"

#define METHODS_MAX (EPD_CONTROL_METHODS + EPD_HEALTH_METHODS)
#define LOCK_WAIT_MS 2000u
#define LISTEN_LATE_MS 1000u /* the sockets open by then even when an engine does not start */
#define DRAIN_POLL_MS 20u
#define RPC_GRACE_MS 200u /* all calls are answered by then; idle clients see no GOAWAY */
#define RESUME_MS 100u
#define ACCEPT_BATCH 64u

enum timer { TIMER_LISTEN, TIMER_DRAIN, TIMER_WATCHDOG, TIMER_RESUME, TIMERS };
enum signal_index { SIG_TERM, SIG_INT, SIG_HUP, SIGNALS };

struct daemon {
    struct epd_settings settings;
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

static void pause_accept(struct daemon *d)
{
    log_limited(EPD_LOG_ERROR, 1000, "no file descriptors left: raise LimitNOFILE");
    (void)uv_poll_stop(&d->accept); /* always succeeds on an open handle */
    (void)uv_timer_start(&d->timer[TIMER_RESUME], on_resume, RESUME_MS, 0);
}

/* Takes over fd. */
static void add_connection(struct daemon *d, int fd)
{
    struct epd_error err;
    struct epd_peer peer;
    enum epd_status status = epd_peer_of_socket(fd, &peer, &err);
    if (status == EPD_OK)
        status = epd_rpc_server_add_connection(d->server, fd, &peer, &err);
    else
        epd_close_fd(&fd);
    if (status != EPD_OK)
        log_limited(EPD_LOG_WARN, 1000, "connection refused: %s", err.message);
}

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct daemon *d = poll->data;
    (void)status;
    (void)events;
    for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
        int fd = accept4(d->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                pause_accept(d);
            return;
        }
        add_connection(d, fd);
    }
}

static enum epd_status open_sockets(struct daemon *d, struct epd_error *err)
{
    enum epd_status status = epd_core_listen(d->core, err);
    if (status == EPD_OK)
        status = epd_listener_open(&d->listener, d->settings.socket, SOCK_STREAM,
                                   (mode_t)d->settings.config.socket_mode,
                                   d->settings.config.socket_group, err);
    if (status != EPD_OK)
        return status;
    int rc = uv_poll_init(&d->loop, &d->accept, d->listener.fd);
    if (rc != 0) {
        epd_listener_close(&d->listener);
        return epd_fail(err, EPD_ESYS, "watch %s: %s", d->settings.socket, uv_strerror(rc));
    }
    d->accept.data = d;
    d->listening = true;
    (void)uv_poll_start(&d->accept, UV_READABLE, on_acceptable); /* the fd was accepted */
    log_info("listening on %s", d->settings.socket);
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
               (unsigned long long)d->settings.config.devices);
    if (serving && d->listening && !d->ready) {
        d->ready = true;
        epd_notify("READY=1");
        log_info("ready: %llu devices", (unsigned long long)d->settings.config.devices);
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
        (void)snprintf(fd_socket, sizeof(fd_socket), "%s" EPD_SOCKPATH_FD_SUFFIX,
                       d->settings.socket);
        (void)unlink(fd_socket); /* a stale socket would be replaced anyway */
        _exit(EXIT_FAILURE);     /* engines see EOF and leave */
    }
    log_info("signal %d: draining, %u sessions", number, epd_core_sessions(d->core));
    epd_notify("STOPPING=1");
    d->draining = true;
    d->drain_until_ns = epd_now_ns() + d->settings.config.drain_ms * 1000000u;
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
    if (epd_settings_reload(&d->settings, &fresh, &err) != EPD_OK)
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
        epd_assert(uv_signal_start(&d->signal[i], i == SIG_HUP ? on_reload_signal : on_stop_signal,
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
        .backend = d->settings.config.backend,
        .node = d->settings.config.node_name,
        .socket = d->settings.socket,
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
        .frame_guard = open_to_others(&d->settings.config),
        .idle_ms = d->settings.config.idle_ms,
        .tcp_address =
            d->settings.config.health_tcp[0] != '\0' ? d->settings.config.health_tcp : NULL,
    };
    return epd_rpc_server_create(&d->loop, &options, &d->server, err);
}

static enum epd_status start(struct daemon *d, struct epd_error *err)
{
    const struct epd_core_options core = {
        .loop = &d->loop,
        .config = &d->settings.config,
        .socket = d->settings.socket,
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
    if (epd_lock_take(d->settings.socket, LOCK_WAIT_MS, &d->lock, &err) != EPD_OK) {
        (void)fprintf(stderr, "epd: %s\n", err.message);
        return EXIT_FAILURE;
    }
    log_info("epd %s, pid %d, backend %s, %llu devices, %llu workers each", EPD_VERSION,
             (int)getpid(), d->settings.config.backend,
             (unsigned long long)d->settings.config.devices,
             (unsigned long long)d->settings.config.workers);
    int code = run(d);
    epd_close_fd(&d->lock);
    log_info("stopped");
    return code;
}

int main(int argc, char **argv)
{
    static struct daemon d = {.lock = -1, .listener = {.fd = -1}};
    enum epd_log_level level = EPD_LOG_INFO;
    int code = epd_settings_load(&d.settings, argc, argv);
    if (code >= 0)
        return code;
    (void)epd_log_level_parse(d.settings.config.log_level, &level); /* config checked the name */
    epd_log_init(level, NULL);
    code = serve(&d);
    epd_settings_fini(&d.settings);
    return code;
}
