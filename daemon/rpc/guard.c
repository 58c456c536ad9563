#define EPD_LOG_COMPONENT "guard"
#include "daemon/rpc/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define PREFACE_BYTES 24u
#define PREFACE_NS 5000000000ull
#define FRAME_HEADER 9u
#define FRAME_MAX 16384u
#define STREAMS_MAX 1024u
#define BUFFER 32768u

enum { FRAME_DATA = 0, FRAME_HEADERS = 1, FRAME_RST_STREAM = 3, FRAME_SETTINGS = 4, FRAME_PING = 6 };
#define FLAG_END_STREAM 1u

struct bucket {
    double tokens, rate, burst;
    uint64_t at_ns;
};

/* One direction: bytes read from one socket and not yet written to the other, and where in the frame
 * stream the reading stands. */
struct pipe {
    uint8_t data[BUFFER];
    size_t begin, end;
    uint8_t header[FRAME_HEADER];
    size_t header_len;
    uint32_t payload_left;
    size_t preface; /* bytes of it seen; client to server only */
};

struct relay {
    struct relay *link;
    int fd[2]; /* 0: client, 1: gRPC */
    bool dead;
    uint64_t born_ns;
    uint32_t open_streams, last_stream;
    struct bucket resets, controls;
    struct pipe pipe[2]; /* [0] client -> gRPC, [1] back */
};

struct epd_guard {
    pthread_t thread;
    int epoll, wake;
    unsigned cut;          /* atomic */
    bool stop;             /* guarded by mutex */
    struct relay *added;   /* guarded by mutex */
    pthread_mutex_t mutex;
    struct relay *relays;  /* the thread's */
};

/* ---- counting ---- */

static bool take(struct bucket *b, uint64_t now)
{
    b->tokens += b->rate * (double)(now - b->at_ns) / 1e9;
    b->at_ns = now;
    if (b->tokens > b->burst)
        b->tokens = b->burst;
    b->tokens -= 1;
    return b->tokens >= 0;
}

static void stream_ended(struct relay *r)
{
    if (r->open_streams > 0)
        r->open_streams--;
}

/* A frame header of side 0 (client) or 1 (gRPC). False: the connection breaks a limit. */
static bool frame(struct relay *r, int side, const uint8_t *h, uint64_t now)
{
    const uint32_t len = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    const uint32_t stream = ((uint32_t)h[5] << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8]) &
                            0x7fffffffu;
    const uint8_t type = h[3], flags = h[4];
    r->pipe[side].payload_left = len;
    if (side == 0 && len > FRAME_MAX)
        return false;
    if (type == FRAME_RST_STREAM) {
        stream_ended(r);
        return take(&r->resets, now);
    }
    if (side == 0 && (type == FRAME_SETTINGS || type == FRAME_PING))
        return take(&r->controls, now);
    if (side == 0 && type == FRAME_HEADERS && stream > r->last_stream) {
        r->last_stream = stream;
        return ++r->open_streams <= STREAMS_MAX;
    }
    if (side == 1 && (type == FRAME_HEADERS || type == FRAME_DATA) && (flags & FLAG_END_STREAM) != 0)
        stream_ended(r);
    return true;
}

static bool inspect(struct relay *r, int side, const uint8_t *at, size_t n, uint64_t now)
{
    struct pipe *p = &r->pipe[side];
    while (n > 0) {
        if (side == 0 && p->preface < PREFACE_BYTES) {
            if (*at != (uint8_t)PREFACE[p->preface])
                return false;
            p->preface++;
            at++, n--;
        } else if (p->payload_left > 0) {
            const size_t skip = n < p->payload_left ? n : p->payload_left;
            p->payload_left -= (uint32_t)skip;
            at += skip, n -= skip;
        } else {
            p->header[p->header_len++] = *at++;
            n--;
            if (p->header_len < FRAME_HEADER)
                continue;
            p->header_len = 0;
            if (!frame(r, side, p->header, now))
                return false;
        }
    }
    return true;
}

/* ---- moving bytes ---- */

/* Read what there is room for. False: end, error, or a broken limit. */
static bool fill(struct epd_guard *g, struct relay *r, int side, uint64_t now)
{
    struct pipe *p = &r->pipe[side];
    if (p->begin == p->end)
        p->begin = p->end = 0;
    if (p->end == BUFFER)
        return true;
    const ssize_t n = recv(r->fd[side], p->data + p->end, BUFFER - p->end, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    if (!inspect(r, side, p->data + p->end, (size_t)n, now)) {
        (void)__atomic_add_fetch(&g->cut, 1, __ATOMIC_RELAXED);
        log_limited(EPD_LOG_INFO, 1000, "connection cut off: it floods or is no HTTP/2");
        return false;
    }
    p->end += (size_t)n;
    return true;
}

static bool flush(struct relay *r, int side)
{
    struct pipe *p = &r->pipe[side];
    while (p->begin < p->end) {
        const ssize_t n = send(r->fd[1 - side], p->data + p->begin, p->end - p->begin,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        p->begin += (size_t)n;
    }
    return true;
}

/* Which events each side waits for now: room to read into, or bytes to get rid of. */
static void arm(struct epd_guard *g, struct relay *r)
{
    for (int side = 0; side < 2; side++) {
        struct epoll_event e = {.data.ptr = r};
        const struct pipe *in = &r->pipe[side], *out = &r->pipe[1 - side];
        if (in->end - in->begin < BUFFER && (in->begin == in->end || in->end < BUFFER))
            e.events |= EPOLLIN;
        if (out->begin < out->end)
            e.events |= EPOLLOUT;
        (void)epoll_ctl(g->epoll, EPOLL_CTL_MOD, r->fd[side], &e); /* it was added */
    }
}

static void service(struct epd_guard *g, struct relay *r, uint64_t now)
{
    bool ok = true;
    for (int side = 0; ok && side < 2; side++)
        ok = fill(g, r, side, now) && flush(r, side);
    if (ok)
        arm(g, r);
    else
        r->dead = true;
}

static void sweep(struct epd_guard *g, uint64_t now)
{
    for (struct relay **at = &g->relays; *at != NULL;) {
        struct relay *r = *at;
        if (!r->dead && r->pipe[0].preface < PREFACE_BYTES && now - r->born_ns > PREFACE_NS)
            r->dead = true;
        if (!r->dead) {
            at = &r->link;
            continue;
        }
        *at = r->link;
        /* The last bytes (a GOAWAY, a final status) may still fit. */
        (void)flush(r, 0);
        (void)flush(r, 1);
        for (int side = 0; side < 2; side++) {
            /* Explicitly: a copy in a child that has not executed yet would keep it registered. */
            (void)epoll_ctl(g->epoll, EPOLL_CTL_DEL, r->fd[side], NULL);
            epd_close_fd(&r->fd[side]);
        }
        free(r);
    }
}

static bool take_added(struct epd_guard *g)
{
    uint64_t count;
    (void)!read(g->wake, &count, sizeof(count));
    (void)pthread_mutex_lock(&g->mutex);
    const bool stop = g->stop;
    struct relay *r = g->added;
    g->added = NULL;
    (void)pthread_mutex_unlock(&g->mutex);
    while (r != NULL) {
        struct relay *next = r->link;
        for (int side = 0; side < 2; side++) {
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = r};
            if (epoll_ctl(g->epoll, EPOLL_CTL_ADD, r->fd[side], &e) != 0)
                r->dead = true;
        }
        r->link = g->relays;
        g->relays = r;
        r = next;
    }
    return !stop;
}

static void *guard_main(void *arg)
{
    struct epd_guard *g = arg;
    bool go = true;
    while (go) {
        struct epoll_event events[64];
        int n = epoll_wait(g->epoll, events, (int)EPD_ARRAY_LEN(events), 1000);
        const uint64_t now = epd_now_ns();
        for (int i = 0; i < n; i++) {
            struct relay *r = events[i].data.ptr;
            if (r == NULL)
                go = take_added(g);
            else if (!r->dead)
                service(g, r, now);
        }
        sweep(g, now);
    }
    for (struct relay *r = g->relays; r != NULL; r = r->link)
        r->dead = true;
    sweep(g, 0);
    return NULL;
}

/* ---- interface ---- */

enum epd_status epd_guard_create(struct epd_guard **out, struct epd_error *err)
{
    struct epd_guard *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the frame guard");
    (void)pthread_mutex_init(&g->mutex, NULL);
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN};
    if (g->epoll < 0 || g->wake < 0 || epoll_ctl(g->epoll, EPOLL_CTL_ADD, g->wake, &e) != 0 ||
        (errno = pthread_create(&g->thread, NULL, guard_main, g)) != 0) {
        enum epd_status status = epd_fail_errno(err, "starting the frame guard");
        epd_close_fd(&g->epoll);
        epd_close_fd(&g->wake);
        (void)pthread_mutex_destroy(&g->mutex);
        free(g);
        return status;
    }
    *out = g;
    return EPD_OK;
}

void epd_guard_destroy(struct epd_guard *g)
{
    if (g == NULL)
        return;
    (void)pthread_mutex_lock(&g->mutex);
    g->stop = true;
    (void)pthread_mutex_unlock(&g->mutex);
    (void)eventfd_write(g->wake, 1);
    (void)pthread_join(g->thread, NULL);
    (void)take_added(g); /* what was added after the thread last looked */
    for (struct relay *r = g->relays; r != NULL; r = r->link)
        r->dead = true;
    sweep(g, 0);
    epd_close_fd(&g->epoll);
    epd_close_fd(&g->wake);
    (void)pthread_mutex_destroy(&g->mutex);
    free(g);
}

enum epd_status epd_guard_add(struct epd_guard *g, int *fd, int *inner_out, struct epd_error *err)
{
    int pair[2];
    struct relay *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a connection");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        free(r);
        return epd_fail_errno(err, "socketpair of the frame guard");
    }
    const uint64_t now = epd_now_ns();
    r->fd[0] = epd_steal_fd(fd);
    r->fd[1] = pair[0];
    r->born_ns = now;
    r->resets = (struct bucket){.tokens = 500, .rate = 200, .burst = 500, .at_ns = now};
    r->controls = (struct bucket){.tokens = 500, .rate = 100, .burst = 500, .at_ns = now};
    *inner_out = pair[1];
    (void)pthread_mutex_lock(&g->mutex);
    r->link = g->added;
    g->added = r;
    (void)pthread_mutex_unlock(&g->mutex);
    (void)eventfd_write(g->wake, 1);
    return EPD_OK;
}

unsigned epd_guard_cut(const struct epd_guard *g)
{
    return __atomic_load_n(&g->cut, __ATOMIC_RELAXED);
}
