#define EPD_LOG_COMPONENT "guard"
#include "daemon/rpc/guard.h"

#include <errno.h>
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
#include "daemon/rpc/guard_frames.h"

#define PREFACE_NS 5000000000ull
#define LINGER_NS 2000000000ull /* for bytes on their way when one side has hung up */
#define STOP_NS 200000000ull    /* the same at the end of the guard */
#define SWEEP_MS 100            /* how exact the deadlines are */
#define SCRATCH 65536u
#define ROUNDS 4u /* pieces moved for one connection before the next has its turn */

/* One direction: what was read from one socket and the other has no room for. Nothing is read while
 * something is left: the back-pressure. */
struct pipe {
    uint8_t *rest; /* owned; NULL: nothing */
    size_t begin, end;
    bool closed; /* the other side takes nothing any more */
};

struct relay {
    struct relay *next, *prev; /* all of them */
    struct relay *ready_next;
    bool ready;
    int fd[2];            /* owned; 0: client, 1: gRPC */
    uint64_t preface_ns;  /* the preface must be complete by then */
    uint64_t deadline_ns; /* the relay ends then; 0: never */
    struct epd_frames frames;
    struct pipe pipe[2]; /* [0] client -> gRPC, [1] back */
};

struct epd_guard {
    pthread_t thread;
    int epoll, wake;
    unsigned cut;        /* atomic */
    bool stop;           /* guarded by mutex */
    struct relay *added; /* guarded by mutex */
    pthread_mutex_t mutex;
    /* the thread's: */
    struct relay *relays;
    struct relay *ready; /* to be served in this turn */
    bool timed;          /* some relay has a deadline */
    uint64_t sweep_ns;   /* when to look at the deadlines */
    uint8_t scratch[SCRATCH];
};

/* ---- moving bytes: edge-triggered, so each side is used until it has no more to give ---- */

enum moved { MOVED_OVER = -1, MOVED_NOTHING = 0, MOVED_SOME = 1 };

static void set_deadline(struct epd_guard *g, struct relay *r, uint64_t at)
{
    if (r->deadline_ns == 0 || at < r->deadline_ns)
        r->deadline_ns = at;
    g->timed = true;
}

/* Write to the side opposite of `side`. Bytes written; -1: it takes nothing any more. */
static ssize_t put(const struct relay *r, int side, const uint8_t *data, size_t len)
{
    size_t done = 0;
    while (done < len) {
        const ssize_t n =
            send(r->fd[1 - side], data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN ? (ssize_t)done : -1;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* gRPC has hung up: its last bytes may still be on their way to the client, whose bytes are of no
 * use any more. A client that has hung up gets nothing any more: the relay is over. */
static enum moved refused(struct epd_guard *g, struct relay *r, int side, uint64_t now)
{
    struct pipe *p = &r->pipe[side];
    if (side == 1)
        return MOVED_OVER;
    free(p->rest);
    p->rest = NULL;
    p->closed = true;
    set_deadline(g, r, now + LINGER_NS);
    return MOVED_NOTHING;
}

static enum moved flush(struct epd_guard *g, struct relay *r, int side, uint64_t now)
{
    struct pipe *p = &r->pipe[side];
    const ssize_t n = put(r, side, p->rest + p->begin, p->end - p->begin);
    if (n < 0)
        return refused(g, r, side, now);
    p->begin += (size_t)n;
    if (p->begin < p->end)
        return MOVED_NOTHING;
    free(p->rest);
    p->rest = NULL;
    return MOVED_SOME;
}

static enum moved cut(struct epd_guard *g, const char *reason)
{
    (void)__atomic_add_fetch(&g->cut, 1, __ATOMIC_RELAXED);
    log_limited(EPD_LOG_INFO, 1000, "connection cut off: %s", reason);
    return MOVED_OVER;
}

static enum moved move(struct epd_guard *g, struct relay *r, int side, uint64_t now)
{
    struct pipe *p = &r->pipe[side];
    if (p->closed)
        return MOVED_NOTHING;
    if (p->rest != NULL)
        return flush(g, r, side, now);
    const ssize_t n = recv(r->fd[side], g->scratch, SCRATCH, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return MOVED_NOTHING;
    if (n <= 0) /* its end; a call that does not block is never interrupted */
        return MOVED_OVER;
    const char *broken = epd_frames_inspect(&r->frames, side, g->scratch, (size_t)n, now);
    if (broken != NULL)
        return cut(g, broken);
    const ssize_t sent = put(r, side, g->scratch, (size_t)n);
    if (sent < 0)
        return refused(g, r, side, now);
    if (sent == n)
        return MOVED_SOME;
    p->begin = 0;
    p->end = (size_t)(n - sent);
    p->rest = malloc(p->end);
    if (p->rest == NULL)
        return MOVED_OVER;
    memcpy(p->rest, g->scratch + sent, p->end);
    return MOVED_SOME;
}

static void make_ready(struct epd_guard *g, struct relay *r)
{
    if (r->ready)
        return;
    r->ready = true;
    r->ready_next = g->ready;
    g->ready = r;
}

static bool expired(const struct relay *r, uint64_t now)
{
    return (!epd_frames_greeted(&r->frames) && now >= r->preface_ns) ||
           (r->deadline_ns != 0 && now >= r->deadline_ns);
}

/* False: the relay is over. */
static bool serve(struct epd_guard *g, struct relay *r, uint64_t now)
{
    bool some = true;
    if (expired(r, now))
        return false;
    for (unsigned round = 0; some && round < ROUNDS; round++) {
        some = false;
        for (int side = 0; side < 2; side++) {
            const enum moved moved = move(g, r, side, now);
            if (moved == MOVED_OVER)
                return false;
            some = some || moved == MOVED_SOME;
        }
    }
    if (some)
        make_ready(g, r);
    return true;
}

/* ---- life of a relay ---- */

static void relay_free(struct epd_guard *g, struct relay *r)
{
    for (int side = 0; side < 2; side++) {
        /* Explicitly: a copy in a child that has not executed yet would keep it registered, and
         * the other end waiting. */
        (void)epoll_ctl(g->epoll, EPOLL_CTL_DEL, r->fd[side], NULL);
        (void)shutdown(r->fd[side], SHUT_RDWR);
        epd_close_fd(&r->fd[side]);
        free(r->pipe[side].rest);
    }
    free(r);
}

static void relay_end(struct epd_guard *g, struct relay *r)
{
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        g->relays = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    relay_free(g, r);
}

static void relay_begin(struct epd_guard *g, struct relay *r)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = r};
    for (int side = 0; side < 2; side++) {
        if (epoll_ctl(g->epoll, EPOLL_CTL_ADD, r->fd[side], &e) != 0) {
            relay_free(g, r);
            return;
        }
    }
    r->prev = NULL;
    r->next = g->relays;
    if (g->relays != NULL)
        g->relays->prev = r;
    g->relays = r;
    g->timed = true; /* the preface */
}

/* ---- the thread ---- */

/* Relays whose time is up are served, which ends them. */
static void sweep(struct epd_guard *g, uint64_t now)
{
    if (!g->timed || now < g->sweep_ns)
        return;
    g->timed = false;
    for (struct relay *r = g->relays; r != NULL; r = r->next) {
        if (expired(r, now))
            make_ready(g, r);
        g->timed = g->timed || !epd_frames_greeted(&r->frames) || r->deadline_ns != 0;
    }
    g->sweep_ns = now + SWEEP_MS * 1000000ull;
}

/* True once the guard shall end. */
static bool take_added(struct epd_guard *g)
{
    eventfd_t count;
    (void)eventfd_read(g->wake, &count); /* EAGAIN: read before */
    (void)pthread_mutex_lock(&g->mutex);
    const bool stop = g->stop;
    struct relay *r = g->added;
    g->added = NULL;
    (void)pthread_mutex_unlock(&g->mutex);
    while (r != NULL) {
        struct relay *next = r->next;
        relay_begin(g, r);
        r = next;
    }
    return stop;
}

static void serve_ready(struct epd_guard *g, uint64_t now)
{
    struct relay *r = g->ready;
    g->ready = NULL;
    while (r != NULL) {
        struct relay *next = r->ready_next;
        r->ready = false;
        if (!serve(g, r, now))
            relay_end(g, r);
        r = next;
    }
}

/* True: the wake-up call was among them. */
static bool note_events(struct epd_guard *g, const struct epoll_event *events, int n, uint64_t now)
{
    bool woken = false;
    for (int i = 0; i < n; i++) {
        struct relay *r = events[i].data.ptr;
        if (r == NULL) {
            woken = true;
            continue;
        }
        if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0)
            set_deadline(g, r, now + LINGER_NS);
        make_ready(g, r);
    }
    return woken;
}

static int wait_ms(const struct epd_guard *g)
{
    if (g->ready != NULL)
        return 0;
    return g->timed ? SWEEP_MS : -1;
}

static void *guard_main(void *arg)
{
    struct epd_guard *g = arg;
    bool stop = false;
    while (!stop || g->relays != NULL) {
        struct epoll_event events[64];
        const int n = epoll_wait(g->epoll, events, (int)EPD_ARRAY_LEN(events), wait_ms(g));
        const uint64_t now = epd_now_ns();
        if (note_events(g, events, n, now) && take_added(g) && !stop) {
            stop = true;
            for (struct relay *r = g->relays; r != NULL; r = r->next)
                set_deadline(g, r, now + STOP_NS);
        }
        sweep(g, now);
        serve_ready(g, now);
    }
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
    (void)eventfd_write(g->wake, 1); /* cannot be full: one for each connection not taken yet */
    (void)pthread_join(g->thread, NULL);
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
    r->preface_ns = now + PREFACE_NS;
    epd_frames_init(&r->frames, now);
    *inner_out = pair[1];
    (void)pthread_mutex_lock(&g->mutex);
    r->next = g->added;
    g->added = r;
    (void)pthread_mutex_unlock(&g->mutex);
    (void)eventfd_write(g->wake, 1);
    return EPD_OK;
}

unsigned epd_guard_cut(const struct epd_guard *g)
{
    return __atomic_load_n(&g->cut, __ATOMIC_RELAXED);
}
