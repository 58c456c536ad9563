#define EPD_LOG_COMPONENT "session"
#include "daemon/core/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/buffer.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/grant.h"
#include "daemon/core/group.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"
#include "proto/status.h"

/* ---- states ---- */

enum event { EV_CONNECT, EV_END, EV_RECLAIMED };
static const char *const g_states[] = {"attached", "active", "reclaiming", "gone"};
static const char *const g_events[] = {"connect", "end", "reclaimed"};
static const struct epd_fsm_row g_rows[] = {
    {EPD_SESSION_ATTACHED, EV_CONNECT, EPD_SESSION_ACTIVE},
    {EPD_SESSION_ATTACHED, EV_END, EPD_SESSION_ENDING},
    {EPD_SESSION_ACTIVE, EV_END, EPD_SESSION_ENDING},
    {EPD_SESSION_ENDING, EV_RECLAIMED, EPD_SESSION_GONE},
};
static uint64_t g_taken[EPD_ARRAY_LEN(g_rows)];
const struct epd_fsm epd_session_fsm = {
    "session", g_states, g_events, g_rows, EPD_ARRAY_LEN(g_rows), g_taken};

static void set_state(struct epd_session *s, enum event event)
{
    s->state = (enum epd_session_state)epd_fsm_step(&epd_session_fsm, s->state, event, s->name);
}

/* ---- the end ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct epd_session *s = handle->data;
    if (--s->handles == 0)
        free(s);
}

static void stop_watching(struct epd_session *s)
{
    if (s->conn >= 0) {
        (void)uv_poll_stop(&s->conn_poll); /* always succeeds on an open handle */
        uv_close((uv_handle_t *)&s->conn_poll, on_handle_closed);
        epd_close_fd(&s->conn);
    }
    if (s->pidfd >= 0) {
        (void)uv_poll_stop(&s->pid_poll);
        uv_close((uv_handle_t *)&s->pid_poll, on_handle_closed);
        epd_close_fd(&s->pidfd);
    }
    (void)uv_timer_stop(&s->timer);
}

void epd_session_settle(struct epd_session *s)
{
    struct epd_core *core = s->core;
    if (s->state != EPD_SESSION_ENDING || s->pending != 0 || s->leases != NULL)
        return;
    epd_buffer_drop_session(s);
    for (struct epd_chunk *c = core->chunks, *next; c != NULL; c = next) {
        next = c->next;
        if (c->session == s)
            epd_chunk_drop(core, c);
    }
    for (unsigned i = 0; i < EPD_MAX_DEVICES; i++)
        epd_close_fd(&s->doorbell[i]);
    set_state(s, EV_RECLAIMED);
    epd_handles_remove(&core->sessions, s->handle);
    uv_close((uv_handle_t *)&s->timer, on_handle_closed);
}

void epd_session_end(struct epd_session *s, const char *why)
{
    if (s->state == EPD_SESSION_ENDING || s->state == EPD_SESSION_GONE)
        return;
    log_debug("session %s pid %d uid %u ends: %s", s->name, (int)s->peer.pid, (unsigned)s->peer.uid,
              why);
    epd_events_add(s->core->events, "session", s->name, "ended: %s", why);
    set_state(s, EV_END);
    stop_watching(s);
    epd_grants_remove_session(s->core->grants, s->id);
    s->pending++; /* leases end one by one below */
    for (struct epd_lease *lease = s->leases, *next; lease != NULL; lease = next) {
        next = lease->next;
        epd_lease_leave(lease, EPD_ERANKLOST, why);
    }
    s->pending--;
    epd_group_creator_gone(s->core, s->id);
    epd_session_settle(s);
}

void epd_session_detach(struct epd_session *s)
{
    epd_session_end(s, "detached");
}

/* ---- the connection ---- */

/* No Detach came before. */
static void note_loss(struct epd_session *s)
{
    s->core->counters.sessions_lost++;
    log_info("client %s pid %d uid %u is gone; it held %u seats", s->name, (int)s->peer.pid,
             (unsigned)s->peer.uid, s->n_leases);
}

static void on_conn(uv_poll_t *poll, int status, int events)
{
    struct epd_session *s = poll->data;
    char byte;
    (void)events;
    ssize_t n = status < 0 ? 0 : recv(s->conn, &byte, sizeof(byte), MSG_DONTWAIT);
    if (n < 0)
        return; /* nothing there after all */
    if (n == 0)
        note_loss(s);
    epd_session_end(s, n == 0 ? "connection closed" : "data on the session connection");
}

static void on_pid(uv_poll_t *poll, int status, int events)
{
    struct epd_session *s = poll->data;
    (void)status;
    (void)events;
    note_loss(s);
    epd_session_end(s, "process ended");
}

static int watch(struct epd_session *s, uv_poll_t *poll, int fd, uv_poll_cb cb)
{
    int rc = uv_poll_init(s->core->loop, poll, fd);
    if (rc != 0)
        return rc;
    poll->data = s;
    s->handles++;
    /* Cannot fail: init accepted the fd. */
    (void)uv_poll_start(poll, UV_READABLE | (cb == on_conn ? UV_DISCONNECT : 0), cb);
    return 0;
}

void epd_session_connect(struct epd_session *s, int fd)
{
    struct epd_error err;
    if (s->state != EPD_SESSION_ATTACHED) {
        epd_close_fd(&fd);
        return;
    }
    (void)uv_timer_stop(&s->timer);
    set_state(s, EV_CONNECT);
    if (watch(s, &s->conn_poll, fd, on_conn) != 0) {
        epd_close_fd(&fd);
        epd_session_end(s, "its connection cannot be watched");
        return;
    }
    s->conn = fd;
    /* Without a visible pid (another pid namespace) EOF alone ends the session. */
    int pidfd = -1;
    if (s->peer.pid > 0) {
        if (epd_pidfd_open(s->peer.pid, &pidfd, &err) != EPD_OK) {
            epd_session_end(s, err.message);
            return;
        }
        if (watch(s, &s->pid_poll, pidfd, on_pid) != 0) {
            epd_close_fd(&pidfd);
            epd_session_end(s, "its process cannot be watched");
            return;
        }
        s->pidfd = pidfd;
    }
    log_debug("session %s pid %d uid %u", s->name, (int)s->peer.pid, (unsigned)s->peer.uid);
    epd_events_add(s->core->events, "session", s->name, "connected, pid %d uid %u",
                   (int)s->peer.pid, (unsigned)s->peer.uid);
}

/* ---- attach ---- */

struct attach {
    struct epd_core *core;
    struct epd_attach_request request;
    char name[EPD_NAME_BYTES], version[EPD_NAME_BYTES];
    epd_attach_fn fn;
    void *arg;
};

static enum epd_status admit(struct epd_core *core, const struct epd_peer *peer,
                             struct epd_error *err)
{
    uint32_t cursor = 0;
    uint64_t mine = 0;
    if (core->draining)
        return epd_fail(err, EPD_EDRAINING, "the daemon is shutting down");
    for (struct epd_session *s; (s = epd_handles_next(&core->sessions, &cursor)) != NULL;)
        mine += s->peer.uid == peer->uid;
    if (mine >= core->config->max_sessions_per_uid)
        return epd_fail(err, EPD_ELIMIT, "user %u has %llu sessions, max_sessions_per_uid is %llu",
                        (unsigned)peer->uid, (unsigned long long)mine,
                        (unsigned long long)core->config->max_sessions_per_uid);
    return EPD_OK;
}

static void on_token_expired(uv_timer_t *timer)
{
    epd_session_end(timer->data, "it did not connect in time");
}

static enum epd_status session_new(const struct attach *a, struct epd_session **out,
                                   struct epd_error *err)
{
    struct epd_core *core = a->core;
    struct epd_session *s = epd_must_calloc(sizeof(*s));
    enum epd_status status = epd_handles_add(&core->sessions, s, &s->handle, err);
    if (status != EPD_OK) {
        free(s);
        return epd_fail_prefix(err, "sessions (max_sessions)");
    }
    s->core = core;
    s->id = epd_handle_pack(s->handle);
    s->peer = a->request.peer;
    s->created_ns = epd_now_ns();
    s->conn = s->pidfd = -1;
    memcpy(s->name, a->name, sizeof(s->name));
    memcpy(s->version, a->version, sizeof(s->version));
    epd_random_bytes(s->key, sizeof(s->key));
    for (unsigned i = 0; i < EPD_MAX_DEVICES; i++)
        s->doorbell[i] = -1;
    (void)uv_timer_init(core->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    s->handles = 1;
    *out = s;
    return EPD_OK;
}

static enum epd_status attach_now(const struct attach *a, struct epd_attach_info *info,
                                  struct epd_error *err)
{
    struct epd_core *core = a->core;
    struct epd_session *s = NULL;
    enum epd_status status = admit(core, &a->request.peer, err);
    if (status == EPD_OK)
        status = session_new(a, &s, err);
    if (status != EPD_OK)
        return status;
    epd_assert(s != NULL);
    const struct epd_grant grant = {
        .kind = EPD_GRANT_SESSION, .peer = s->peer, .session = s->id, .fd = -1};
    status = epd_grants_issue(core->grants, &grant, info->token, err);
    if (status != EPD_OK) {
        epd_session_end(s, "no token left");
        return status;
    }
    (void)uv_timer_start(&s->timer, on_token_expired, EPD_GRANT_TTL_MS, 0); /* has a callback */
    core->counters.sessions++;
    info->session = s->id;
    memcpy(info->key, s->key, sizeof(info->key));
    info->fd_socket = core->fd_socket;
    info->devices = core->n_devices;
    return EPD_OK;
}

static void on_started(void *arg)
{
    struct attach *a = arg;
    struct epd_attach_info info;
    struct epd_error err;
    if (attach_now(a, &info, &err) == EPD_OK) {
        a->fn(a->arg, &info, NULL);
    } else {
        a->core->counters.limited += err.status == EPD_ELIMIT;
        a->fn(a->arg, NULL, &err);
    }
    free(a);
}

void epd_session_attach(struct epd_core *core, const struct epd_attach_request *request,
                        epd_attach_fn fn, void *arg)
{
    struct epd_error err;
    if (strlen(request->name) >= EPD_NAME_BYTES || strlen(request->version) >= EPD_NAME_BYTES) {
        (void)epd_fail(&err, EPD_EINVAL, "name and version must be at most %u bytes",
                       EPD_NAME_BYTES - 1);
        fn(arg, NULL, &err);
        return;
    }
    struct attach *a = epd_must_calloc(sizeof(*a));
    *a = (struct attach){.core = core, .request = *request, .fn = fn, .arg = arg};
    (void)snprintf(a->name, sizeof(a->name), "%s", request->name);
    (void)snprintf(a->version, sizeof(a->version), "%s", request->version);
    if (epd_core_started(core) || core->draining)
        on_started(a);
    else
        epd_waiters_add(&core->start_waiters, on_started, a);
}

/* ---- looks ---- */

uint64_t epd_session_id(const struct epd_session *s)
{
    return s->id;
}

struct epd_session *epd_session_by_id(struct epd_core *core, uint64_t id)
{
    void *found;
    if (epd_handles_get(&core->sessions, epd_handle_unpack(id), &found, NULL) != EPD_OK)
        return NULL;
    return found;
}

enum epd_status epd_session_check(struct epd_core *core, const struct epd_session_proof *proof,
                                  struct epd_session **out, struct epd_error *err)
{
    struct epd_session *s = epd_session_by_id(core, proof->id);
    if (s == NULL || s->state != EPD_SESSION_ACTIVE)
        return epd_fail(err, EPD_ESESSIONLOST, "session %llu is not open; attach again",
                        (unsigned long long)proof->id);
    if (proof->key == NULL || proof->key_len != EPD_KEY_BYTES ||
        !epd_bytes_equal(proof->key, s->key, EPD_KEY_BYTES) || proof->uid != s->peer.uid) {
        core->counters.refused++;
        return epd_fail(err, EPD_EPERM, "session %llu is not this caller's",
                        (unsigned long long)proof->id);
    }
    *out = s;
    return EPD_OK;
}

enum epd_status epd_session_may_hold(const struct epd_session *session, uint64_t bytes,
                                     struct epd_error *err)
{
    struct epd_core *core = session->core;
    const uint64_t limit = core->config->max_bytes_per_uid;
    uint32_t cursor = 0;
    uint64_t held = 0;
    for (struct epd_session *s; (s = epd_handles_next(&core->sessions, &cursor)) != NULL;)
        held += s->peer.uid == session->peer.uid ? s->bytes : 0;
    if (bytes <= limit && held <= limit - bytes)
        return EPD_OK;
    core->counters.limited++;
    return epd_fail(err, EPD_ELIMIT,
                    "user %u holds %llu bytes, %llu more exceed max_bytes_per_uid %llu",
                    (unsigned)session->peer.uid, (unsigned long long)held,
                    (unsigned long long)bytes, (unsigned long long)limit);
}

/* ---- descriptors for the client ---- */

enum epd_status epd_session_doorbell(struct epd_session *s, unsigned device, int *fd_out,
                                     struct epd_error *err)
{
    if (s->doorbell[device] < 0) {
        s->doorbell[device] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (s->doorbell[device] < 0)
            return epd_fail_errno(err, "doorbell for device %u", device);
    }
    *fd_out = s->doorbell[device];
    return EPD_OK;
}

static enum epd_status add_grant(struct epd_session *s, struct epd_grant *grant, const char *kind,
                                 struct epd_grant_info *info, struct epd_error *err)
{
    grant->peer = s->peer;
    grant->session = s->id;
    info->kind = kind;
    info->id = grant->id;
    return epd_grants_issue(s->core->grants, grant, info->token, err);
}

enum epd_status epd_session_grant_chunk(struct epd_session *s, const struct epd_chunk *chunk,
                                        struct epd_grant_info *infos, unsigned *n,
                                        struct epd_error *err)
{
    if (chunk->held)
        return EPD_OK;
    struct epd_grant grant = {.kind = EPD_GRANT_CHUNK, .id = chunk->id, .fd = chunk->fd};
    infos[*n].bytes = chunk->bytes;
    return add_grant(s, &grant, "chunk", &infos[(*n)++], err);
}

enum epd_status epd_session_grant_device(struct epd_session *s, unsigned device,
                                         struct epd_grant_info *infos, unsigned *n,
                                         struct epd_error *err)
{
    struct epd_device *d = s->core->device[device];
    enum epd_status status = EPD_OK;
    if (!epd_device_running(d))
        return epd_fail(err, EPD_EDEVICE, "device %u is %s", device, epd_device_state_name(d));
    if (s->status_held[device] != epd_device_incarnation(d)) {
        struct epd_grant grant = {.kind = EPD_GRANT_STATUS,
                                  .id = device,
                                  .incarnation = epd_device_incarnation(d),
                                  .fd = epd_device_fds(d)[0]};
        infos[*n].bytes = EPD_STATUS_PAGE_BYTES;
        status = add_grant(s, &grant, "status", &infos[(*n)++], err);
    }
    if (status == EPD_OK && !s->doorbell_held[device]) {
        struct epd_grant grant = {.kind = EPD_GRANT_DOORBELL, .id = device};
        status = epd_session_doorbell(s, device, &grant.fd, err);
        infos[*n].bytes = 0;
        if (status == EPD_OK)
            status = add_grant(s, &grant, "doorbell", &infos[(*n)++], err);
    }
    return status;
}

void epd_session_granted(struct epd_core *core, const struct epd_grant *grant)
{
    struct epd_session *s = epd_session_by_id(core, grant->session);
    if (s == NULL)
        return;
    if (grant->kind == EPD_GRANT_STATUS)
        s->status_held[grant->id] = grant->incarnation;
    else if (grant->kind == EPD_GRANT_DOORBELL)
        s->doorbell_held[grant->id] = true;
    for (struct epd_chunk *c = core->chunks; c != NULL && grant->kind == EPD_GRANT_CHUNK;
         c = c->next)
        if (c->id == grant->id)
            c->held = true;
}
