#define EPD_LOG_COMPONENT "device"
#include "daemon/core/device.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/must.h"
#include "daemon/core/spawn.h"
#include "daemon/ipc/memfd.h"
#include "proto/status.h"
#include "proto/version.h"

#define BACKOFF_MAX_MS 2000u
#define FAILED_RETRY_MS 60000u
#define RESTART_WINDOW_NS 60000000000ull
#define PING_MS 1000u
#define HUNG_UP "engine closed its socket"

/* ---- states ---- */

enum event { EV_START, EV_UP, EV_LOST, EV_REAPED, EV_RETRY, EV_GIVE_UP, EV_STOP };

static const char *const g_states[] = {"idle",       "starting", "running",  "dying",  "backoff",
                                       "restarting", "failed",   "stopping", "stopped"};
static const char *const g_events[] = {"start", "up", "lost", "reaped", "retry", "give_up", "stop"};
static const struct epd_fsm_row g_rows[] = {
    {EPD_DEVICE_IDLE, EV_START, EPD_DEVICE_STARTING},
    {EPD_DEVICE_IDLE, EV_STOP, EPD_DEVICE_STOPPED},
    {EPD_DEVICE_STARTING, EV_UP, EPD_DEVICE_RUNNING},
    {EPD_DEVICE_STARTING, EV_LOST, EPD_DEVICE_DYING},
    {EPD_DEVICE_STARTING, EV_STOP, EPD_DEVICE_STOPPING},
    {EPD_DEVICE_RUNNING, EV_LOST, EPD_DEVICE_DYING},
    {EPD_DEVICE_RUNNING, EV_STOP, EPD_DEVICE_STOPPING},
    {EPD_DEVICE_DYING, EV_REAPED, EPD_DEVICE_BACKOFF},
    {EPD_DEVICE_DYING, EV_STOP, EPD_DEVICE_STOPPING},
    {EPD_DEVICE_BACKOFF, EV_RETRY, EPD_DEVICE_RESTARTING},
    {EPD_DEVICE_BACKOFF, EV_GIVE_UP, EPD_DEVICE_FAILED},
    {EPD_DEVICE_BACKOFF, EV_STOP, EPD_DEVICE_STOPPED},
    {EPD_DEVICE_RESTARTING, EV_UP, EPD_DEVICE_RUNNING},
    {EPD_DEVICE_RESTARTING, EV_LOST, EPD_DEVICE_DYING},
    {EPD_DEVICE_RESTARTING, EV_STOP, EPD_DEVICE_STOPPING},
    {EPD_DEVICE_FAILED, EV_RETRY, EPD_DEVICE_RESTARTING},
    {EPD_DEVICE_FAILED, EV_STOP, EPD_DEVICE_STOPPED},
    {EPD_DEVICE_STOPPING, EV_REAPED, EPD_DEVICE_STOPPED},
};
static uint64_t g_taken[EPD_ARRAY_LEN(g_rows)];
const struct epd_fsm epd_device_fsm = {"device", g_states, g_events, g_rows, EPD_ARRAY_LEN(g_rows),
                                       g_taken};

struct epd_device {
    struct epd_device_options options;
    struct epd_device_owner owner;
    enum epd_device_state state;
    bool configured;
    uint64_t incarnation;
    unsigned restarts;
    char cause[160];
    /* process */
    pid_t pid; /* 0: none */
    int pidfd; /* owned */
    uv_poll_t watch;
    struct epd_link *link;        /* owned */
    int fds[EPD_DEVICE_FDS];      /* owned */
    struct epd_status_page *page; /* owned mapping */
    /* time */
    uv_timer_t tick, retry;
    unsigned handles; /* open uv handles that are part of this object */
    bool ping_open;   /* not answered */
    uint64_t tick_ms; /* period */
    uint64_t ping_ms; /* turns of the loop since then, by period: a stopped loop counts once */
    uint64_t backoff_ms;
    uint64_t window_start_ns;
    unsigned window_restarts;
    struct epd_msg_stats stats;
};

static void start_incarnation(struct epd_device *d);

static void set_state(struct epd_device *d, enum event event)
{
    char name[16];
    (void)snprintf(name, sizeof(name), "%u", d->options.index);
    d->state = (enum epd_device_state)epd_fsm_step(&epd_device_fsm, d->state, event, name);
    d->owner.changed(d->owner.arg, d);
}

/* ---- the end of an incarnation ---- */

static void mark_dead(struct epd_device *d)
{
    if (d->page != NULL) {
        const uint32_t was = __atomic_load_n(&d->page->state, __ATOMIC_ACQUIRE);
        if (was != EPD_ENGINE_STOPPED && was != EPD_ENGINE_DAEMON_LOST)
            __atomic_store_n(&d->page->state, EPD_ENGINE_DEAD, __ATOMIC_RELEASE);
    }
    epd_memfd_unmap(d->page, EPD_STATUS_PAGE_BYTES);
    d->page = NULL;
    for (unsigned i = 0; i < EPD_DEVICE_FDS; i++)
        epd_close_fd(&d->fds[i]);
}

static void on_retry(uv_timer_t *timer)
{
    struct epd_device *d = timer->data;
    set_state(d, EV_RETRY);
    start_incarnation(d);
}

/* Backoff doubles with every death in the window; a quiet minute forgets. */
static void plan_restart(struct epd_device *d)
{
    const uint64_t now = epd_now_ns();
    if (now - d->window_start_ns > RESTART_WINDOW_NS) {
        d->window_start_ns = now;
        d->window_restarts = 0;
        d->backoff_ms = 0;
    }
    uint64_t wait = d->backoff_ms;
    d->backoff_ms = wait == 0 ? d->options.backoff_ms : wait * 2;
    if (d->backoff_ms > BACKOFF_MAX_MS)
        d->backoff_ms = BACKOFF_MAX_MS;
    d->restarts++;
    if (++d->window_restarts > d->options.restart_max) {
        set_state(d, EV_GIVE_UP);
        log_error("engine %u failed %u times in a minute (%s): find the cause in its log; next try "
                  "in %u s",
                  d->options.index, d->window_restarts, d->cause, FAILED_RETRY_MS / 1000u);
        wait = FAILED_RETRY_MS;
        d->window_start_ns = 0;
    }
    (void)uv_timer_start(&d->retry, on_retry, wait, 0); /* fails only without a callback */
}

static void incarnation_over(struct epd_device *d)
{
    const bool stopping = d->state == EPD_DEVICE_STOPPING;
    struct epd_link *link = d->link;
    (void)uv_timer_stop(&d->tick); /* always succeeds */
    (void)uv_timer_stop(&d->retry);
    d->configured = false;
    d->ping_open = false;
    d->link = NULL;
    mark_dead(d);
    epd_link_close(link);
    if (stopping)
        d->owner.down(d->owner.arg, d);
    set_state(d, EV_REAPED);
    if (stopping)
        return;
    d->owner.down(d->owner.arg, d);
    if (d->state == EPD_DEVICE_BACKOFF)
        plan_restart(d);
}

static void on_watch_closed(uv_handle_t *handle)
{
    struct epd_device *d = handle->data;
    if (--d->handles == 0)
        free(d);
}

static void on_exit_readable(uv_poll_t *poll, int status, int events)
{
    struct epd_device *d = poll->data;
    char end[64];
    (void)status;
    (void)events;
    epd_spawn_reap(d->pid, end, sizeof(end));
    if (d->state != EPD_DEVICE_DYING && d->state != EPD_DEVICE_STOPPING) {
        (void)snprintf(d->cause, sizeof(d->cause), "engine ended with %s", end);
        set_state(d, EV_LOST);
    }
    /* How it ended says more than that it hung up. */
    if (strcmp(d->cause, HUNG_UP) == 0)
        (void)snprintf(d->cause, sizeof(d->cause), "engine ended with %s", end);
    if (d->state == EPD_DEVICE_DYING)
        log_warn("engine %u pid %d is gone (%s): %s", d->options.index, (int)d->pid, end, d->cause);
    d->pid = 0;
    (void)uv_poll_stop(&d->watch); /* always succeeds on an open handle */
    epd_close_fd(&d->pidfd);
    uv_close((uv_handle_t *)&d->watch, on_watch_closed);
    incarnation_over(d);
}

void epd_device_kill(struct epd_device *d, const char *why)
{
    if (d->pid == 0)
        return;
    if (d->state != EPD_DEVICE_DYING && d->state != EPD_DEVICE_STOPPING) {
        (void)snprintf(d->cause, sizeof(d->cause), "%s", why);
        set_state(d, EV_LOST);
    }
    /* By pidfd: never another process that got the number. ESRCH: dead, the watch will say so. */
    (void)syscall(SYS_pidfd_send_signal, d->pidfd, SIGKILL, NULL, 0);
}

static void on_link_lost(void *arg, const char *why)
{
    struct epd_device *d = arg;
    char text[120];
    (void)snprintf(text, sizeof(text), "engine %.100s", why);
    epd_device_kill(d, text);
}

static void on_report(void *arg, const struct epd_msg_epoch *msg)
{
    struct epd_device *d = arg;
    if (d->state == EPD_DEVICE_RUNNING)
        d->owner.report(d->owner.arg, d, msg);
}

/* ---- heartbeat ---- */

static void on_pong(void *arg, const struct epd_link_reply *reply)
{
    struct epd_device *d = arg;
    d->ping_open = false;
    if (reply->err == NULL && reply->msg->h.bytes >= sizeof(d->stats))
        memcpy(&d->stats, reply->msg, sizeof(d->stats));
}

static void send_ping(struct epd_device *d)
{
    struct epd_msg_header ping = {.type = EPD_MSG_PING, .bytes = sizeof(ping)};
    d->ping_open = true;
    d->ping_ms = 0;
    epd_link_request(d->link, &ping, NULL, 0, on_pong, d);
}

static void on_tick(uv_timer_t *timer)
{
    struct epd_device *d = timer->data;
    d->ping_ms += d->tick_ms;
    if (!d->ping_open)
        send_ping(d);
    else if (d->ping_ms >= d->options.stall_ms)
        epd_device_kill(d, "engine did not answer within engine_stall_ms");
}

/* ---- the start of an incarnation ---- */

static enum epd_status adopt_fds(struct epd_device *d, const struct epd_link_reply *reply,
                                 struct epd_error *err)
{
    if (reply->n_fds != EPD_DEVICE_FDS)
        return epd_fail(err, EPD_EINTERNAL, "engine answered CONFIG with %u descriptors",
                        reply->n_fds);
    void *page;
    enum epd_status status = epd_memfd_map(reply->fds[0], EPD_STATUS_PAGE_BYTES, true, &page, err);
    if (status != EPD_OK)
        return status;
    d->page = page;
    if (d->page->magic != EPD_STATUS_MAGIC || d->page->abi != EPD_ABI_VERSION)
        return epd_fail(err, EPD_EVERSION,
                        "engine's status page has another ABI: install epd and "
                        "epd-engine of one release");
    status = epd_memfd_seal_future_write(reply->fds[0], err);
    if (status != EPD_OK)
        return status;
    for (unsigned i = 0; i < EPD_DEVICE_FDS; i++)
        d->fds[i] = epd_steal_fd(&reply->fds[i]);
    return EPD_OK;
}

static void on_config_reply(void *arg, const struct epd_link_reply *reply)
{
    struct epd_device *d = arg;
    if (reply->msg == NULL ||
        (d->state != EPD_DEVICE_STARTING && d->state != EPD_DEVICE_RESTARTING))
        return;
    struct epd_error err;
    if (reply->err != NULL)
        err = *reply->err;
    else if (adopt_fds(d, reply, &err) == EPD_OK) {
        d->configured = true;
        d->owner.configured(d->owner.arg, d);
        return;
    }
    epd_device_kill(d, err.message);
}

static void send_config(struct epd_device *d)
{
    struct epd_msg_config msg = {
        .h = {.type = EPD_MSG_CONFIG, .bytes = sizeof(msg)},
        .abi = EPD_ABI_VERSION,
        .device = d->options.index,
        .incarnation = d->incarnation,
        .workers = d->options.workers,
        .spin_us = d->options.spin_us,
        .log_level = (uint32_t)epd_log_get_level(),
    };
    epd_link_request(d->link, &msg.h, NULL, 0, on_config_reply, d);
}

static enum epd_status start_process(struct epd_device *d, struct epd_error *err)
{
    const struct epd_link_events events = {.report = on_report, .lost = on_link_lost, .arg = d};
    struct epd_spawned p;
    enum epd_status status =
        epd_spawn_engine(d->options.engine_path, d->options.index, d->options.lock_fd, &p, err);
    if (status != EPD_OK)
        return status;
    int rc = uv_poll_init(d->options.loop, &d->watch, p.pidfd);
    if (rc != 0) {
        status = epd_fail(err, EPD_ESYS, "watch engine %u: %s", d->options.index, uv_strerror(rc));
        goto err_kill;
    }
    d->handles++;
    d->watch.data = d;
    (void)uv_poll_start(&d->watch, UV_READABLE, on_exit_readable); /* the fd was accepted by init */
    d->pid = p.pid;
    d->pidfd = p.pidfd;
    status = epd_link_open(d->options.loop, p.sock, &events, &d->link, err);
    if (status != EPD_OK)
        epd_device_kill(d, err->message);
    return EPD_OK;

err_kill:
    (void)kill(p.pid, SIGKILL); /* our child, not reaped */
    (void)waitid(P_PID, (id_t)p.pid, NULL, WEXITED);
    epd_close_fd(&p.pidfd);
    epd_close_fd(&p.sock);
    return status;
}

static void start_incarnation(struct epd_device *d)
{
    struct epd_error err;
    d->tick_ms = d->options.stall_ms / 2 < PING_MS ? d->options.stall_ms / 2 : PING_MS;
    d->incarnation++;
    memset(&d->stats, 0, sizeof(d->stats));
    if (start_process(d, &err) != EPD_OK) {
        (void)snprintf(d->cause, sizeof(d->cause), "%.150s", err.message);
        log_warn("engine %u does not start: %s", d->options.index, err.message);
        set_state(d, EV_LOST);
        incarnation_over(d);
        return;
    }
    if (d->link == NULL)
        return;
    send_config(d);
    send_ping(d);
    (void)uv_timer_start(&d->tick, on_tick, d->tick_ms,
                         d->tick_ms); /* fails only without a callback */
}

void epd_device_ready(struct epd_device *d, const struct epd_error *err)
{
    if (d->state != EPD_DEVICE_STARTING && d->state != EPD_DEVICE_RESTARTING)
        return;
    if (err != NULL) {
        char text[160];
        (void)snprintf(text, sizeof(text), "replay failed: %.140s", err->message);
        epd_device_kill(d, text);
        return;
    }
    set_state(d, EV_UP);
    log_info("engine %u runs, pid %d, incarnation %llu", d->options.index, (int)d->pid,
             (unsigned long long)d->incarnation);
    d->owner.running(d->owner.arg, d);
}

/* ---- life ---- */

struct epd_device *epd_device_create(const struct epd_device_options *options,
                                     const struct epd_device_owner *owner)
{
    struct epd_device *d = epd_must_calloc(sizeof(*d));
    d->options = *options;
    d->owner = *owner;
    d->pidfd = -1;
    for (unsigned i = 0; i < EPD_DEVICE_FDS; i++)
        d->fds[i] = -1;
    (void)uv_timer_init(options->loop, &d->tick); /* cannot fail */
    (void)uv_timer_init(options->loop, &d->retry);
    d->tick.data = d->retry.data = d;
    d->handles = 2;
    return d;
}

void epd_device_destroy(struct epd_device *d)
{
    if (d == NULL)
        return;
    epd_assert(d->pid == 0);
    uv_close((uv_handle_t *)&d->tick, on_watch_closed);
    uv_close((uv_handle_t *)&d->retry, on_watch_closed);
}

void epd_device_start(struct epd_device *d)
{
    set_state(d, EV_START);
    start_incarnation(d);
}

static void on_stop_late(uv_timer_t *timer)
{
    epd_device_kill(timer->data, "engine did not stop");
}

void epd_device_stop(struct epd_device *d, uint64_t grace_ms)
{
    if (d->state == EPD_DEVICE_STOPPING || d->state == EPD_DEVICE_STOPPED)
        return;
    const bool dying = d->state == EPD_DEVICE_DYING;
    (void)uv_timer_stop(&d->retry); /* always succeeds */
    (void)uv_timer_stop(&d->tick);
    set_state(d, EV_STOP);
    if (d->state != EPD_DEVICE_STOPPING)
        return;
    if (dying || d->link == NULL)
        return;
    struct epd_msg_header stop = {.type = EPD_MSG_STOP, .bytes = sizeof(stop)};
    epd_link_request(d->link, &stop, NULL, 0, NULL, NULL);
    (void)uv_timer_start(&d->retry, on_stop_late, grace_ms, 0);
}

enum epd_status epd_device_request(struct epd_device *d, struct epd_msg_header *msg, const int *fds,
                                   unsigned n_fds, epd_link_fn fn, void *arg)
{
    if (!epd_device_configured(d))
        return EPD_EDEVICE;
    epd_link_request(d->link, msg, fds, n_fds, fn, arg);
    return EPD_OK;
}

/* ---- looks ---- */

unsigned epd_device_index(const struct epd_device *d)
{
    return d->options.index;
}

enum epd_device_state epd_device_state(const struct epd_device *d)
{
    return d->state;
}

const char *epd_device_state_name(const struct epd_device *d)
{
    static const char *const names[] = {
        [EPD_DEVICE_IDLE] = "starting",      [EPD_DEVICE_STARTING] = "starting",
        [EPD_DEVICE_RUNNING] = "running",    [EPD_DEVICE_DYING] = "restarting",
        [EPD_DEVICE_BACKOFF] = "restarting", [EPD_DEVICE_RESTARTING] = "restarting",
        [EPD_DEVICE_FAILED] = "failed",      [EPD_DEVICE_STOPPING] = "stopped",
        [EPD_DEVICE_STOPPED] = "stopped",
    };
    return names[d->state];
}

bool epd_device_configured(const struct epd_device *d)
{
    return d->configured && (d->state == EPD_DEVICE_STARTING || d->state == EPD_DEVICE_RUNNING ||
                             d->state == EPD_DEVICE_RESTARTING);
}

uint64_t epd_device_incarnation(const struct epd_device *d)
{
    return d->incarnation;
}

const int *epd_device_fds(const struct epd_device *d)
{
    return d->fds;
}

static uint64_t live(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

void epd_device_info(const struct epd_device *d, struct epd_device_info *out)
{
    *out = (struct epd_device_info){
        .index = d->options.index,
        .workers = d->options.workers,
        .state = epd_device_state_name(d),
        .incarnation = d->incarnation,
        .rss_bytes = d->stats.rss_bytes,
        .restarts = d->restarts,
        .pid = d->pid,
    };
    (void)snprintf(out->cause, sizeof(out->cause), "%s", d->cause);
    if (d->page != NULL) {
        out->ops = live(&d->page->ops);
        out->tasks = live(&d->page->tasks);
        out->wakeups = live(&d->page->wakeups);
    }
}
