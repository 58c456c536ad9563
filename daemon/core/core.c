#define EPD_LOG_COMPONENT "core"
#include "daemon/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/broker.h"
#include "daemon/core/change.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/epoch.h"
#include "daemon/core/grant.h"
#include "daemon/core/group.h"
#include "daemon/core/join.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"
#include "daemon/core/session.h"

#define START_GRACE_MS 5000u /* Attach is answered after this even when an engine hangs */
#define STOP_GRACE_MS 2000u
#define LEASES_MAX 65536u
#define BUFFERS_MAX 65536u

/* ---- what devices tell ---- */

static void send_peer(struct epd_device *to, struct epd_device *about, enum epd_msg_type type)
{
    struct epd_msg_peer msg = {.h = {.type = (uint16_t)type, .bytes = sizeof(msg)},
                               .device = epd_device_index(about)};
    const unsigned n = type == EPD_MSG_PEER ? EPD_DEVICE_FDS : 0;
    /* One that is down is introduced when it is back. */
    (void)epd_device_request(to, &msg.h, epd_device_fds(about), n, NULL, NULL);
}

static void on_replayed(void *arg, const struct epd_error *err)
{
    /* Lost meanwhile: the next incarnation has a replay of its own. */
    if (err == NULL || err->status != EPD_EDEVICE)
        epd_device_ready(arg, err);
}

static void on_configured(void *arg, struct epd_device *device)
{
    struct epd_core *core = arg;
    uint32_t cursor = 0;
    for (unsigned i = 0; i < core->n_devices; i++) {
        struct epd_device *other = core->device[i];
        if (other == device || !epd_device_configured(other))
            continue;
        send_peer(device, other, EPD_MSG_PEER);
        send_peer(other, device, EPD_MSG_PEER);
    }
    struct epd_join *join = epd_join_create(false, on_replayed, device);
    epd_chunk_replay(core, device, join);
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        epd_group_replay(g, device, join);
    epd_join_seal(join);
}

static void on_running(void *arg, struct epd_device *device)
{
    struct epd_core *core = arg;
    const unsigned index = epd_device_index(device);
    char name[32];
    uint32_t cursor = 0;
    (void)snprintf(name, sizeof(name), "%u", index);
    epd_events_add(core->events, "device", name, "runs, incarnation %llu",
                   (unsigned long long)epd_device_incarnation(device));
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        epd_change_device_up(g, index);
}

static void on_down(void *arg, struct epd_device *device)
{
    struct epd_core *core = arg;
    const unsigned index = epd_device_index(device);
    struct epd_device_info info;
    char name[32];
    uint32_t cursor = 0;
    epd_device_info(device, &info);
    (void)snprintf(name, sizeof(name), "%u", index);
    if (!core->stopping) {
        core->counters.engine_restarts++;
        epd_events_add(core->events, "device", name, "down: %s", info.cause);
    }
    for (unsigned i = 0; i < core->n_devices; i++)
        if (i != index)
            send_peer(core->device[i], device, EPD_MSG_PEER_GONE);
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        epd_change_device_down(g, index);
}

static void on_report(void *arg, struct epd_device *device, const struct epd_msg_epoch *msg)
{
    (void)device;
    epd_epoch_report(arg, msg);
}

static void check_started(struct epd_core *core)
{
    bool over = true;
    if (core->start_over)
        return;
    for (unsigned i = 0; i < core->n_devices; i++) {
        const enum epd_device_state s = epd_device_state(core->device[i]);
        over = over && s != EPD_DEVICE_IDLE && s != EPD_DEVICE_STARTING;
    }
    core->start_over = over;
    if (over)
        epd_waiters_run(&core->start_waiters);
}

/* Engines first: they complete everything with EPD_EDAEMONLOST before a client sees EOF. */
static void end_sessions(struct epd_core *core)
{
    uint32_t cursor = 0;
    for (struct epd_session *s; (s = epd_handles_next(&core->sessions, &cursor)) != NULL;)
        epd_session_end(s, "the daemon stops");
}

/* What is left after the sessions: groups, whose engines are gone. */
static void drop_groups(struct epd_core *core)
{
    uint32_t cursor = 0;
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;) {
        const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
        g->destroy = true;
        g->refs++;
        epd_change_begin(g, &cause, "the daemon stops");
        epd_change_end_if_due(g);
        epd_group_put(g);
    }
}

void epd_core_check_stopped(struct epd_core *core)
{
    void (*stopped)(void *arg) = core->stopped;
    if (!core->stopping || stopped == NULL)
        return;
    for (unsigned i = 0; i < core->n_devices; i++)
        if (epd_device_state(core->device[i]) != EPD_DEVICE_STOPPED)
            return;
    /* Answers that jobs owe come with the sessions' end, so these go first. */
    end_sessions(core);
    drop_groups(core);
    if (core->jobs != 0 || core->stopped == NULL)
        return;
    core->stopped = NULL;
    epd_broker_close(core->broker);
    core->broker = NULL;
    stopped(core->stopped_arg);
}

static void on_changed(void *arg, struct epd_device *device)
{
    struct epd_core *core = arg;
    uint32_t cursor = 0;
    if (epd_device_state(device) == EPD_DEVICE_FAILED)
        for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
            epd_change_device_failed(g);
    check_started(core);
    if (core->options.changed != NULL)
        core->options.changed(core->options.arg);
    epd_core_check_stopped(core);
}

/* ---- life ---- */

static enum epd_status check_backend(const struct epd_config *config, struct epd_error *err)
{
    if (strcmp(config->backend, "cuda") == 0)
        return epd_fail(err, EPD_EUNSUPPORTED,
                        "backend: the cuda backend is not built; use host or auto");
    return EPD_OK;
}

static void create_devices(struct epd_core *core)
{
    const struct epd_config *c = core->config;
    const struct epd_device_owner owner = {
        .configured = on_configured,
        .running = on_running,
        .down = on_down,
        .changed = on_changed,
        .report = on_report,
        .arg = core,
    };
    for (unsigned i = 0; i < core->n_devices; i++) {
        const struct epd_device_options options = {
            .loop = core->loop,
            .engine_path = c->engine_path,
            .index = i,
            .lock_fd = core->options.lock_fd,
            .workers = (uint32_t)c->workers,
            .spin_us = c->spin_us != 0 ? (uint32_t)c->spin_us : UINT32_MAX,
            .stall_ms = c->engine_stall_ms,
            .backoff_ms = c->restart_backoff_ms,
            .restart_max = c->restart_max,
        };
        core->device[i] = epd_device_create(&options, &owner);
    }
}

enum epd_status epd_core_create(const struct epd_core_options *options, struct epd_core **out,
                                struct epd_error *err)
{
    const struct epd_config *c = options->config;
    enum epd_status status = check_backend(c, err);
    if (status != EPD_OK)
        return status;
    struct epd_core *core = epd_must_calloc(sizeof(*core));
    core->options = *options;
    core->config = c;
    core->loop = options->loop;
    core->started_ns = epd_now_ns();
    core->n_devices = (unsigned)c->devices;
    (void)snprintf(core->fd_socket, sizeof(core->fd_socket), "%s.fd", options->socket);
    epd_handles_init(&core->sessions, (uint32_t)c->max_sessions);
    epd_handles_init(&core->groups, (uint32_t)c->max_groups);
    epd_handles_init(&core->leases, LEASES_MAX);
    epd_handles_init(&core->buffers, BUFFERS_MAX);
    core->grants = epd_grants_create(core->loop, &core->counters.grants_expired);
    core->events = epd_events_create();
    (void)uv_timer_init(core->loop, &core->start_timer); /* cannot fail */
    core->start_timer.data = core;
    create_devices(core);
    *out = core;
    return EPD_OK;
}

static void on_start_late(uv_timer_t *timer)
{
    struct epd_core *core = timer->data;
    core->start_over = true;
    epd_waiters_run(&core->start_waiters);
    if (core->options.changed != NULL)
        core->options.changed(core->options.arg);
}

void epd_core_start(struct epd_core *core)
{
    (void)uv_timer_start(&core->start_timer, on_start_late, START_GRACE_MS, 0);
    for (unsigned i = 0; i < core->n_devices; i++)
        epd_device_start(core->device[i]);
}

enum epd_status epd_core_listen(struct epd_core *core, struct epd_error *err)
{
    return epd_broker_open(core, &core->broker, err);
}

void epd_core_drain(struct epd_core *core)
{
    if (core->draining)
        return;
    core->draining = true;
    epd_events_add(core->events, "daemon", "epd", "draining");
    epd_waiters_run(&core->start_waiters);
}

void epd_core_stop(struct epd_core *core, void (*stopped)(void *arg), void *arg)
{
    epd_core_drain(core);
    core->stopped = stopped;
    core->stopped_arg = arg;
    core->stopping = true;
    (void)uv_timer_stop(&core->start_timer); /* always succeeds */
    for (unsigned i = 0; i < core->n_devices; i++)
        epd_device_stop(core->device[i], STOP_GRACE_MS);
    epd_core_check_stopped(core);
}

static void on_core_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void epd_core_destroy(struct epd_core *core)
{
    if (core == NULL)
        return;
    epd_broker_close(core->broker);
    end_sessions(core);
    drop_groups(core);
    epd_waiters_run(&core->start_waiters);
    for (unsigned i = 0; i < core->n_devices; i++)
        epd_device_destroy(core->device[i]);
    while (core->chunks != NULL)
        epd_chunk_drop(core, core->chunks);
    epd_grants_destroy(core->grants);
    epd_events_destroy(core->events);
    epd_handles_fini(&core->sessions);
    epd_handles_fini(&core->groups);
    epd_handles_fini(&core->leases);
    epd_handles_fini(&core->buffers);
    uv_close((uv_handle_t *)&core->start_timer, on_core_closed);
}

/* ---- looks ---- */

bool epd_core_all_running(const struct epd_core *core)
{
    for (unsigned i = 0; i < core->n_devices; i++)
        if (!epd_device_running(core->device[i]))
            return false;
    return true;
}

bool epd_core_started(const struct epd_core *core)
{
    return core->start_over;
}

enum epd_core_state epd_core_state(const struct epd_core *core)
{
    if (core->draining)
        return EPD_CORE_DRAINING;
    if (!core->start_over)
        return EPD_CORE_STARTING;
    return epd_core_all_running(core) ? EPD_CORE_SERVING : EPD_CORE_DEGRADED;
}

const char *epd_core_state_name(enum epd_core_state state)
{
    static const char *const names[] = {"starting", "serving", "degraded", "draining"};
    return names[state];
}

unsigned epd_core_sessions(const struct epd_core *core)
{
    return core->sessions.used;
}

struct epd_events *epd_core_events(struct epd_core *core)
{
    return core->events;
}

bool epd_core_is_admin(const struct epd_core *core, const struct epd_peer *peer)
{
    return peer->uid == 0 || peer->uid == geteuid() ||
           (core->config->admin_group[0] != '\0' &&
            epd_peer_in_group(peer, core->config->admin_group));
}
