#define EPD_LOG_COMPONENT "link"
#include "daemon/core/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/must.h"
#include "daemon/ipc/fdpass.h"

#define LINK_FDS 4u /* of one message, both ways */

struct pending {
    uint64_t seq;
    uint16_t type;
    epd_link_fn fn;
    void *arg;
    struct pending *next;
};

struct outgoing {
    size_t bytes;
    int fds[LINK_FDS]; /* owned copies */
    unsigned n_fds;
    struct outgoing *next;
    uint8_t data[];
};

struct epd_link {
    uv_poll_t poll;
    int fd;
    bool dead, closed;
    uint64_t next_seq;
    struct epd_link_events events;
    struct pending *first, **last;          /* owned, by seq */
    struct outgoing *out_first, **out_last; /* owned */
};

static void poll_start(struct epd_link *link);

static void die(struct epd_link *link, const char *why)
{
    if (link->dead || link->closed)
        return;
    link->dead = true;
    (void)uv_poll_stop(&link->poll); /* always succeeds on an open handle */
    link->events.lost(link->events.arg, why);
}

/* ---- out ---- */

static void outgoing_free(struct outgoing *o)
{
    for (unsigned i = 0; i < o->n_fds; i++)
        epd_close_fd(&o->fds[i]);
    free(o);
}

/* EPD_EAGAIN also for what passes by itself: descriptors in flight, kernel memory. */
static enum epd_status send_now(struct epd_link *link, const void *data, size_t bytes,
                                const int *fds, unsigned n_fds)
{
    struct epd_error err;
    enum epd_status status = epd_fd_send(link->fd, data, bytes, fds, n_fds, &err);
    if (status == EPD_ENOMEM || status == EPD_ELIMIT)
        status = EPD_EAGAIN;
    if (status != EPD_OK && status != EPD_EAGAIN)
        die(link, err.message);
    return status;
}

static void enqueue(struct epd_link *link, const void *data, size_t bytes, const int *fds,
                    unsigned n_fds)
{
    struct outgoing *o = epd_must_calloc(sizeof(*o) + bytes);
    memcpy(o->data, data, bytes);
    o->bytes = bytes;
    for (unsigned i = 0; i < n_fds; i++) {
        o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (o->fds[i] < 0) {
            die(link, "no file descriptor left for a message");
            outgoing_free(o);
            return;
        }
        o->n_fds++;
    }
    *link->out_last = o;
    link->out_last = &o->next;
    poll_start(link);
}

static void flush_out(struct epd_link *link)
{
    while (link->out_first != NULL && !link->dead) {
        struct outgoing *o = link->out_first;
        if (send_now(link, o->data, o->bytes, o->fds, o->n_fds) != EPD_OK)
            return;
        link->out_first = o->next;
        if (link->out_first == NULL)
            link->out_last = &link->out_first;
        outgoing_free(o);
    }
    if (!link->dead)
        poll_start(link);
}

void epd_link_request(struct epd_link *link, struct epd_msg_header *msg, const int *fds,
                      unsigned n_fds, epd_link_fn fn, void *arg)
{
    const size_t bytes = msg->bytes;
    epd_assert(bytes >= sizeof(*msg) && bytes <= EPD_MSG_MAX_BYTES && n_fds <= LINK_FDS &&
               !link->closed);
    msg->seq = link->next_seq++;
    struct pending *p = epd_must_calloc(sizeof(*p));
    *p = (struct pending){.seq = msg->seq, .type = msg->type, .fn = fn, .arg = arg};
    *link->last = p;
    link->last = &p->next;
    if (link->dead)
        return;
    if (link->out_first != NULL || send_now(link, msg, bytes, fds, n_fds) == EPD_EAGAIN)
        enqueue(link, msg, bytes, fds, n_fds);
}

/* ---- in ---- */

static struct pending *take_pending(struct epd_link *link, uint64_t seq)
{
    for (struct pending **at = &link->first; *at != NULL; at = &(*at)->next) {
        struct pending *p = *at;
        if (p->seq != seq)
            continue;
        *at = p->next;
        if (link->last == &p->next)
            link->last = at;
        return p;
    }
    return NULL;
}

static void finish(struct pending *p, const struct epd_link_reply *reply)
{
    if (p->fn != NULL)
        p->fn(p->arg, reply);
    else if (reply->err != NULL && reply->msg != NULL)
        log_warn("engine refused message type %u: %s", p->type, reply->err->message);
    free(p);
}

static void take_reply(struct epd_link *link, struct epd_msg_reply *msg, int *fds, unsigned n_fds)
{
    struct pending *p = take_pending(link, msg->h.seq);
    if (p == NULL) {
        die(link, "reply to no request");
        return;
    }
    struct epd_error err = {.status = (enum epd_status)msg->status};
    msg->message[sizeof(msg->message) - 1] = '\0';
    memcpy(err.message, msg->message, sizeof(err.message));
    const struct epd_link_reply reply = {
        .err = msg->status == EPD_OK ? NULL : &err,
        .msg = msg,
        .fds = fds,
        .n_fds = n_fds,
    };
    finish(p, &reply);
}

static void take_datagram(struct epd_link *link, void *buf, size_t len, int *fds, unsigned n_fds)
{
    struct epd_msg_header h;
    if (len < sizeof(h)) {
        die(link, "short message");
        return;
    }
    memcpy(&h, buf, sizeof(h));
    if (h.bytes != len)
        die(link, "message of a wrong length");
    else if (h.type == EPD_MSG_REPLY && len >= sizeof(struct epd_msg_reply))
        take_reply(link, buf, fds, n_fds);
    else if (h.type == EPD_MSG_EPOCH_FAILED && len == sizeof(struct epd_msg_epoch))
        link->events.report(link->events.arg, buf);
    else
        die(link, "unknown message");
}

static void on_readable(struct epd_link *link)
{
    union {
        struct epd_msg_header align;
        uint8_t bytes[EPD_MSG_MAX_BYTES];
    } buf;
    while (!link->dead && !link->closed) {
        int fds[LINK_FDS];
        unsigned n_fds = 0;
        size_t len = 0;
        struct epd_error err;
        enum epd_status status =
            epd_fd_recv(link->fd, &buf, sizeof(buf), &len, fds, LINK_FDS, &n_fds, &err);
        if (status == EPD_EAGAIN)
            return;
        if (status != EPD_OK) {
            die(link, status == EPD_ESESSIONLOST ? "closed its socket" : err.message);
            return;
        }
        take_datagram(link, &buf, len, fds, n_fds);
        for (unsigned i = 0; i < n_fds; i++)
            epd_close_fd(&fds[i]);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct epd_link *link = poll->data;
    if (status < 0) { /* POLLERR: it died with messages of ours unread */
        die(link, "closed its socket");
        return;
    }
    if (events & UV_WRITABLE)
        flush_out(link);
    if (events & UV_READABLE && !link->closed)
        on_readable(link);
}

static void poll_start(struct epd_link *link)
{
    const int events = UV_READABLE | (link->out_first != NULL ? UV_WRITABLE : 0);
    if (uv_poll_start(&link->poll, events, on_poll) != 0)
        die(link, "cannot watch its socket");
}

/* ---- life ---- */

enum epd_status epd_link_open(uv_loop_t *loop, int fd, const struct epd_link_events *events,
                              struct epd_link **out, struct epd_error *err)
{
    struct epd_link *link = epd_must_calloc(sizeof(*link));
    link->fd = fd;
    link->next_seq = 1;
    link->events = *events;
    link->last = &link->first;
    link->out_last = &link->out_first;
    int rc = uv_poll_init(loop, &link->poll, fd);
    if (rc != 0) {
        epd_close_fd(&fd);
        free(link);
        return epd_fail(err, EPD_ESYS, "watch an engine's socket: %s", uv_strerror(rc));
    }
    link->poll.data = link;
    poll_start(link);
    *out = link;
    return EPD_OK;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void epd_link_close(struct epd_link *link)
{
    if (link == NULL || link->closed)
        return;
    link->dead = link->closed = true;
    (void)uv_poll_stop(&link->poll); /* always succeeds on an open handle */
    epd_close_fd(&link->fd);
    while (link->out_first != NULL) {
        struct outgoing *o = link->out_first;
        link->out_first = o->next;
        outgoing_free(o);
    }
    const struct epd_error err = {.status = EPD_EDEVICE, .message = "the engine is gone"};
    const struct epd_link_reply reply = {.err = &err};
    while (link->first != NULL) {
        struct pending *p = link->first;
        link->first = p->next;
        finish(p, &reply);
    }
    uv_close((uv_handle_t *)&link->poll, on_closed);
}
