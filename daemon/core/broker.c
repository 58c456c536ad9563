#define EPD_LOG_COMPONENT "broker"
#include "daemon/core/broker.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/grant.h"
#include "daemon/core/must.h"
#include "daemon/core/session.h"
#include "daemon/ipc/fdpass.h"
#include "daemon/ipc/listener.h"

#define SILENT_MS 2000u
#define RESUME_MS 100u
#define CONNS_MAX 512u /* at once; more wait in the backlog */

struct conn {
    struct epd_broker *broker;
    uv_poll_t poll;
    uv_timer_t timer;
    int fd; /* owned; -1: given to a session */
    unsigned handles;
    struct epd_peer peer;
    struct conn *next;
};

struct epd_broker {
    struct epd_core *core;
    struct epd_listener listener; /* owned */
    uv_poll_t poll;
    struct conn *conns; /* owned */
    unsigned n_conns;
    uv_timer_t resume; /* after descriptors ran out */
    unsigned handles;
    bool paused, closed;
};

static void accept_more(struct epd_broker *broker);

/* ---- connections ---- */

static void on_conn_closed(uv_handle_t *handle)
{
    struct conn *c = handle->data;
    if (--c->handles == 0)
        free(c);
}

static void conn_close(struct conn *c)
{
    struct epd_broker *broker = c->broker;
    struct conn **at = &broker->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    broker->n_conns--;
    (void)uv_poll_stop(&c->poll); /* always succeeds on an open handle */
    uv_close((uv_handle_t *)&c->poll, on_conn_closed);
    uv_close((uv_handle_t *)&c->timer, on_conn_closed);
    epd_close_fd(&c->fd);
    accept_more(broker);
}

static void reply(const struct conn *c, const struct epd_fd_reply *r, const int *fd)
{
    /* The first datagram of a fresh socket always fits; a client that is gone does not matter. */
    (void)epd_fd_send(c->fd, r, sizeof(*r), fd, fd != NULL, NULL);
}

static void refuse(struct conn *c, enum epd_status status)
{
    const struct epd_fd_reply r = {.status = status};
    reply(c, &r, NULL);
    conn_close(c);
}

static void redeem_session(struct conn *c, struct epd_grant *grant)
{
    struct epd_grants *grants = c->broker->core->grants;
    const struct epd_fd_reply r = {.kind = EPD_FD_REPLY_SESSION, .id = grant->session};
    struct epd_session *session = epd_session_by_id(c->broker->core, grant->session);
    epd_grants_remove(grants, grant);
    if (session == NULL) {
        refuse(c, EPD_ESESSIONLOST);
        return;
    }
    reply(c, &r, NULL);
    int fd = epd_steal_fd(&c->fd);
    conn_close(c);
    epd_session_connect(session, fd);
}

static void redeem_fd(struct conn *c, struct epd_grant *grant)
{
    struct epd_core *core = c->broker->core;
    const struct epd_fd_reply r = {.kind = EPD_FD_REPLY_GRANT, .id = grant->id};
    reply(c, &r, &grant->fd);
    core->counters.grants++;
    epd_session_granted(core, grant);
    epd_grants_remove(core->grants, grant);
    conn_close(c);
}

static void redeem_import(struct conn *c, struct epd_grant *grant, int *fd)
{
    const struct epd_fd_reply r = {.kind = EPD_FD_REPLY_IMPORT, .id = grant->id};
    if (*fd < 0 || grant->fd >= 0) {
        refuse(c, EPD_EINVAL);
        return;
    }
    grant->fd = epd_steal_fd(fd);
    reply(c, &r, NULL);
    conn_close(c);
}

static void on_conn_readable(uv_poll_t *poll, int status, int events)
{
    struct conn *c = poll->data;
    struct epd_core *core = c->broker->core;
    uint8_t token[EPD_TOKEN_BYTES];
    EPD_AUTO_CLOSE int fd = -1;
    size_t len = 0;
    unsigned n_fds = 0;
    (void)events;
    enum epd_status got =
        status < 0 ? EPD_ESYS
                   : epd_fd_recv(c->fd, token, sizeof(token), &len, &fd, 1, &n_fds, NULL);
    if (got == EPD_EAGAIN)
        return;
    if (got != EPD_OK || len != sizeof(token)) {
        if (got == EPD_OK || got == EPD_EINVAL)
            refuse(c, EPD_EINVAL);
        else
            conn_close(c);
        return;
    }
    struct epd_grant *grant = epd_grants_find(core->grants, token, &c->peer);
    if (grant == NULL) {
        core->counters.refused++;
        refuse(c, EPD_EPERM);
    } else if (grant->kind == EPD_GRANT_SESSION) {
        redeem_session(c, grant);
    } else if (grant->kind == EPD_GRANT_IMPORT) {
        redeem_import(c, grant, &fd);
    } else {
        redeem_fd(c, grant);
    }
}

static void on_silent(uv_timer_t *timer)
{
    conn_close(timer->data);
}

static void conn_open(struct epd_broker *broker, int fd)
{
    struct epd_peer peer;
    struct conn *c = epd_must_calloc(sizeof(*c));
    if (epd_peer_of_socket(fd, &peer, NULL) != EPD_OK ||
        uv_poll_init(broker->core->loop, &c->poll, fd) != 0) {
        epd_close_fd(&fd);
        free(c);
        return;
    }
    c->broker = broker;
    c->fd = fd;
    c->peer = peer;
    c->handles = 2;
    (void)uv_timer_init(broker->core->loop, &c->timer); /* cannot fail */
    c->poll.data = c->timer.data = c;
    c->next = broker->conns;
    broker->conns = c;
    broker->n_conns++;
    (void)uv_timer_start(&c->timer, on_silent, SILENT_MS, 0);
    if (uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_conn_readable) != 0)
        conn_close(c);
}

/* ---- the listener ---- */

static void on_resume(uv_timer_t *timer)
{
    accept_more(timer->data);
}

/* No descriptor, or as many connections as there may be: the others wait in the backlog. */
static void pause_accept(struct epd_broker *broker)
{
    if (broker->n_conns < CONNS_MAX)
        log_limited(EPD_LOG_ERROR, 1000, "no file descriptors left: raise LimitNOFILE");
    broker->paused = true;
    (void)uv_poll_stop(&broker->poll); /* always succeeds on an open handle */
    (void)uv_timer_start(&broker->resume, on_resume, RESUME_MS, 0); /* has a callback */
}

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct epd_broker *broker = poll->data;
    (void)status;
    (void)events;
    while (broker->n_conns < CONNS_MAX) {
        int fd = accept4(broker->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EMFILE && errno != ENFILE)
                return;
            pause_accept(broker);
            return;
        }
        conn_open(broker, fd);
    }
    broker->paused = true;
    (void)uv_poll_stop(&broker->poll); /* always succeeds on an open handle */
}

static void accept_more(struct epd_broker *broker)
{
    if (!broker->paused || broker->closed || broker->n_conns >= CONNS_MAX)
        return;
    broker->paused = false;
    (void)uv_poll_start(&broker->poll, UV_READABLE, on_acceptable); /* the fd was accepted once */
}

enum epd_status epd_broker_open(struct epd_core *core, struct epd_broker **out,
                                struct epd_error *err)
{
    struct epd_broker *broker = epd_must_calloc(sizeof(*broker));
    broker->core = core;
    enum epd_status status =
        epd_listener_open(&broker->listener, core->fd_socket, SOCK_SEQPACKET,
                          (mode_t)core->config->socket_mode, core->config->socket_group, err);
    if (status != EPD_OK)
        goto err_free;
    int rc = uv_poll_init(core->loop, &broker->poll, broker->listener.fd);
    if (rc != 0) {
        status = epd_fail(err, EPD_ESYS, "watch %s: %s", core->fd_socket, uv_strerror(rc));
        goto err_close;
    }
    (void)uv_timer_init(core->loop, &broker->resume); /* cannot fail */
    broker->poll.data = broker->resume.data = broker;
    broker->handles = 2;
    (void)uv_poll_start(&broker->poll, UV_READABLE, on_acceptable); /* the fd was accepted */
    *out = broker;
    return EPD_OK;

err_close:
    epd_listener_close(&broker->listener);
err_free:
    free(broker);
    return status;
}

static void on_broker_closed(uv_handle_t *handle)
{
    struct epd_broker *broker = handle->data;
    if (--broker->handles == 0)
        free(broker);
}

void epd_broker_close(struct epd_broker *broker)
{
    if (broker == NULL)
        return;
    broker->closed = true;
    while (broker->conns != NULL)
        conn_close(broker->conns);
    (void)uv_poll_stop(&broker->poll); /* always succeeds on an open handle */
    epd_listener_close(&broker->listener);
    uv_close((uv_handle_t *)&broker->poll, on_broker_closed);
    uv_close((uv_handle_t *)&broker->resume, on_broker_closed);
}
