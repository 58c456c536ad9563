#define EPD_LOG_COMPONENT "control"
#include "daemon/engine/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/peers.h"
#include "daemon/engine/workers.h"
#include "daemon/ipc/fdpass.h"
#include "daemon/ipc/memfd.h"
#include "proto/version.h"

#define FDS_MAX 3u

struct epd_control {
    int sock;
    enum epd_control_state state;
    bool configured;
    uint32_t workers, spin_us;
    int fds[FDS_MAX]; /* of the message in hand */
    unsigned n_fds;
};

/* ---- sending ---- */

static void send_message(struct epd_engine *engine, const void *msg, size_t bytes, const int *fds,
                         unsigned n_fds)
{
    struct epd_control *c = engine->control;
    struct epd_error err;
    enum epd_status status;
    /* The supervisor always reads; a full socket means that it is stopped or dying. Wait for it. */
    while ((status = epd_fd_send(c->sock, msg, bytes, fds, n_fds, &err)) == EPD_EAGAIN) {
        struct pollfd p = {.fd = c->sock, .events = POLLOUT};
        (void)poll(&p, 1, 100);
    }
    if (status == EPD_ESESSIONLOST)
        c->state = EPD_CONTROL_LOST;
    else if (status != EPD_OK) {
        log_error("cannot answer the supervisor: %s", err.message);
        c->state = EPD_CONTROL_BROKEN;
    }
}

static void fill_reply(struct epd_msg_reply *r, uint64_t seq, size_t bytes,
                       const struct epd_error *err)
{
    r->h = (struct epd_msg_header){.type = EPD_MSG_REPLY, .bytes = (uint32_t)bytes, .seq = seq};
    if (err != NULL && err->status != EPD_OK) {
        r->status = err->status;
        memcpy(r->message, err->message, sizeof(r->message));
    }
}

static void reply_fds(struct epd_engine *engine, uint64_t seq, const int *fds, unsigned n_fds)
{
    struct epd_msg_reply r = {0};
    fill_reply(&r, seq, sizeof(r), NULL);
    send_message(engine, &r, sizeof(r), fds, n_fds);
}

void epd_control_reply(struct epd_engine *engine, uint64_t seq, const struct epd_error *err)
{
    struct epd_msg_reply r = {0};
    fill_reply(&r, seq, sizeof(r), err);
    send_message(engine, &r, sizeof(r), NULL, 0);
}

void epd_control_report(struct epd_engine *engine, struct epd_msg_epoch *msg)
{
    msg->h = (struct epd_msg_header){.type = EPD_MSG_EPOCH_FAILED, .bytes = sizeof(*msg)};
    send_message(engine, msg, sizeof(*msg), NULL, 0);
}

/* ---- handlers: EPD_OK with *replied set when they answered themselves ---- */

typedef enum epd_status handler_fn(struct epd_engine *engine, const void *msg, bool *replied,
                                   struct epd_error *err);

static enum epd_status open_status_page(struct epd_engine *engine, uint64_t incarnation,
                                        int *fd_out, struct epd_error *err)
{
    void *base;
    enum epd_status status =
        epd_memfd_create("epd-status", EPD_STATUS_PAGE_BYTES, false, fd_out, err);
    if (status == EPD_OK)
        status = epd_memfd_map(*fd_out, EPD_STATUS_PAGE_BYTES, true, &base, err);
    if (status != EPD_OK)
        return status;
    engine->status = base;
    engine->status->magic = EPD_STATUS_MAGIC;
    engine->status->abi = EPD_ABI_VERSION;
    engine->status->device = engine->device;
    engine->status->incarnation = incarnation;
    engine->status->pid = (uint32_t)getpid();
    __atomic_store_n(&engine->status->state, EPD_ENGINE_RUNNING, __ATOMIC_RELEASE);
    return EPD_OK;
}

static enum epd_status check_config(const struct epd_control *c, const struct epd_msg_config *msg,
                                    struct epd_error *err)
{
    if (c->configured)
        return epd_fail(err, EPD_EINVAL, "config was sent twice");
    if (msg->device >= EPD_MAX_DEVICES)
        return epd_fail(err, EPD_EINVAL, "config device is %u, above %u", msg->device,
                        EPD_MAX_DEVICES - 1u);
    if (msg->workers < 1 || msg->workers > EPD_WORKERS_MAX)
        return epd_fail(err, EPD_EINVAL, "config workers is %u, must be 1..%u", msg->workers,
                        EPD_WORKERS_MAX);
    if (msg->log_level > EPD_LOG_DEBUG)
        return epd_fail(err, EPD_EINVAL, "config log_level is %u, above %d", msg->log_level,
                        EPD_LOG_DEBUG);
    return EPD_OK;
}

static enum epd_status on_config(struct epd_engine *engine, const void *m, bool *replied,
                                 struct epd_error *err)
{
    const struct epd_msg_config *msg = m;
    struct epd_control *c = engine->control;
    EPD_AUTO_CLOSE int status_fd = -1;
    char ident[16];
    if (msg->abi != EPD_ABI_VERSION)
        return epd_fail(err, EPD_EVERSION, "supervisor has ABI %u, engine has %u", msg->abi,
                        EPD_ABI_VERSION);
    enum epd_status status = check_config(c, msg, err);
    if (status != EPD_OK)
        return status;
    engine->device = msg->device;
    (void)snprintf(ident, sizeof(ident), "engine%u", msg->device);
    epd_log_init((enum epd_log_level)msg->log_level, ident);
    c->workers = msg->workers;
    c->spin_us = msg->spin_us;
    status = epd_peers_create(engine->device, &engine->peers, err);
    if (status == EPD_OK)
        status = open_status_page(engine, msg->incarnation, &status_fd, err);
    if (status != EPD_OK) {
        epd_peers_destroy(engine->peers);
        engine->peers = NULL;
        return status;
    }
    c->configured = true;
    *replied = true;
    const int fds[3] = {status_fd, epd_peers_doorbell_fd(engine->peers),
                        epd_peers_bell_fd(engine->peers)};
    reply_fds(engine, msg->h.seq, fds, 3);
    return EPD_OK;
}

static enum epd_status on_peer(struct epd_engine *engine, const void *m, bool *replied,
                               struct epd_error *err)
{
    (void)replied;
    return epd_peers_set(engine->peers, ((const struct epd_msg_peer *)m)->device,
                         engine->control->fds, err);
}

static enum epd_status on_peer_gone(struct epd_engine *engine, const void *m, bool *replied,
                                    struct epd_error *err)
{
    const uint32_t device = ((const struct epd_msg_peer *)m)->device;
    (void)replied;
    if (device >= EPD_MAX_DEVICES)
        return epd_fail(err, EPD_EINVAL, "peer device %u", device);
    epd_peers_gone(engine->peers, device);
    return EPD_OK;
}

static enum epd_status on_chunk_create(struct epd_engine *engine, const void *m, bool *replied,
                                       struct epd_error *err)
{
    const struct epd_msg_chunk *msg = m;
    EPD_AUTO_CLOSE int fd = -1;
    enum epd_status status = epd_chunks_add_new(engine->chunks, msg, &fd, err);
    if (status == EPD_OK) {
        *replied = true;
        reply_fds(engine, msg->h.seq, &fd, 1);
    }
    return status;
}

static enum epd_status on_chunk_adopt(struct epd_engine *engine, const void *m, bool *replied,
                                      struct epd_error *err)
{
    (void)replied;
    return epd_chunks_adopt(engine->chunks, m, engine->control->fds[0], err);
}

static enum epd_status on_chunk_drop(struct epd_engine *engine, const void *m, bool *replied,
                                     struct epd_error *err)
{
    const struct epd_msg_chunk *msg = m;
    (void)replied;
    if (epd_groups_use_chunk(engine, msg->chunk))
        return epd_fail(err, EPD_EBUSY, "chunk %llu is in use", (unsigned long long)msg->chunk);
    return epd_chunks_drop(engine->chunks, msg->chunk, err);
}

static enum epd_status on_seat_set(struct epd_engine *engine, const void *m, bool *replied,
                                   struct epd_error *err)
{
    const struct epd_msg_seat *msg = m;
    (void)replied;
    enum epd_status status = epd_groups_seat_set(engine, msg, err);
    if (status != EPD_OK)
        return status;
    status =
        epd_doorbells_add(engine->doorbells, msg->group, msg->rank, &engine->control->fds[0], err);
    if (status != EPD_OK) { /* a seat that cannot be woken is none */
        const struct epd_msg_epoch clear = {.group = msg->group, .rank = (int32_t)msg->rank};
        (void)epd_groups_seat_clear(engine, &clear, NULL); /* it was set a moment ago */
    }
    return status;
}

static enum epd_status on_seat_clear(struct epd_engine *engine, const void *m, bool *replied,
                                     struct epd_error *err)
{
    const struct epd_msg_epoch *msg = m;
    (void)replied;
    epd_doorbells_remove(engine->doorbells, msg->group, msg->rank);
    return epd_groups_seat_clear(engine, msg, err);
}

static enum epd_status on_group_drop(struct epd_engine *engine, const void *m, bool *replied,
                                     struct epd_error *err)
{
    const struct epd_msg_epoch *msg = m;
    (void)replied;
    epd_doorbells_remove(engine->doorbells, msg->group, -1);
    return epd_groups_drop(engine, msg, err);
}

static enum epd_status on_revoke(struct epd_engine *engine, const void *m, bool *replied,
                                 struct epd_error *err)
{
    enum epd_status status = epd_groups_revoke(engine, m, err);
    *replied = status == EPD_OK; /* later, when drained */
    return status;
}

static uint64_t rss_bytes(void)
{
    char text[128] = "";
    unsigned long long size, resident;
    EPD_AUTO_CLOSE int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0 ||
        sscanf(text, "%llu %llu", &size, &resident) != 2)
        return 0; /* no /proc here: unknown */
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum epd_status on_ping(struct epd_engine *engine, const void *m, bool *replied,
                               struct epd_error *err)
{
    (void)err;
    struct epd_msg_stats s = {0};
    fill_reply(&s.r, ((const struct epd_msg_header *)m)->seq, sizeof(s), NULL);
    s.ops = engine->ops;
    s.tasks = epd_workers_tasks(engine->workers);
    s.wakeups = engine->status->wakeups;
    epd_chunks_totals(engine->chunks, &s.chunks, &s.chunk_bytes);
    epd_groups_totals(engine, &s.groups, &s.seats);
    s.rss_bytes = rss_bytes();
    *replied = true;
    send_message(engine, &s, sizeof(s), NULL, 0);
    return EPD_OK;
}

static enum epd_status on_group_stats(struct epd_engine *engine, const void *m, bool *replied,
                                      struct epd_error *err)
{
    struct epd_msg_group_stats s = {0};
    enum epd_status status = epd_groups_stats(engine, m, &s, err);
    if (status != EPD_OK)
        return status;
    fill_reply(&s.r, ((const struct epd_msg_header *)m)->seq, sizeof(s), NULL);
    *replied = true;
    send_message(engine, &s, sizeof(s), NULL, 0);
    return EPD_OK;
}

static enum epd_status on_stop(struct epd_engine *engine, const void *m, bool *replied,
                               struct epd_error *err)
{
    (void)m;
    (void)replied;
    (void)err;
    epd_groups_poison(engine, EPD_EDAEMONLOST);
    engine->control->state = EPD_CONTROL_STOP;
    return EPD_OK;
}

#define WRAP(name, type, call)                                                                     \
    static enum epd_status name(struct epd_engine *engine, const void *m, bool *replied,           \
                                struct epd_error *err)                                             \
    {                                                                                              \
        (void)replied;                                                                             \
        return call(engine, (const struct type *)m, err);                                          \
    }
WRAP(on_group_set, epd_msg_group, epd_groups_set)
WRAP(on_desc_set, epd_msg_desc, epd_groups_desc_set)
WRAP(on_desc_clear, epd_msg_desc, epd_groups_desc_clear)
WRAP(on_fail, epd_msg_epoch, epd_groups_fail)
WRAP(on_generation, epd_msg_epoch, epd_groups_generation)
WRAP(on_arm, epd_msg_epoch, epd_groups_arm)

static const struct {
    size_t bytes;
    unsigned n_fds;
    handler_fn *handle;
} g_handlers[] = {
    [EPD_MSG_CONFIG] = {sizeof(struct epd_msg_config), 0, on_config},
    [EPD_MSG_PEER] = {sizeof(struct epd_msg_peer), 3, on_peer},
    [EPD_MSG_PEER_GONE] = {sizeof(struct epd_msg_peer), 0, on_peer_gone},
    [EPD_MSG_CHUNK_CREATE] = {sizeof(struct epd_msg_chunk), 0, on_chunk_create},
    [EPD_MSG_CHUNK_ADOPT] = {sizeof(struct epd_msg_chunk), 1, on_chunk_adopt},
    [EPD_MSG_CHUNK_DROP] = {sizeof(struct epd_msg_chunk), 0, on_chunk_drop},
    [EPD_MSG_GROUP_SET] = {sizeof(struct epd_msg_group), 0, on_group_set},
    [EPD_MSG_GROUP_DROP] = {sizeof(struct epd_msg_epoch), 0, on_group_drop},
    [EPD_MSG_SEAT_SET] = {sizeof(struct epd_msg_seat), 1, on_seat_set},
    [EPD_MSG_SEAT_CLEAR] = {sizeof(struct epd_msg_epoch), 0, on_seat_clear},
    [EPD_MSG_DESC_SET] = {sizeof(struct epd_msg_desc), 0, on_desc_set},
    [EPD_MSG_DESC_CLEAR] = {sizeof(struct epd_msg_desc), 0, on_desc_clear},
    [EPD_MSG_REVOKE] = {sizeof(struct epd_msg_epoch), 0, on_revoke},
    [EPD_MSG_FAIL] = {sizeof(struct epd_msg_epoch), 0, on_fail},
    [EPD_MSG_GENERATION] = {sizeof(struct epd_msg_epoch), 0, on_generation},
    [EPD_MSG_ARM] = {sizeof(struct epd_msg_epoch), 0, on_arm},
    [EPD_MSG_PING] = {sizeof(struct epd_msg_header), 0, on_ping},
    [EPD_MSG_STOP] = {sizeof(struct epd_msg_header), 0, on_stop},
    [EPD_MSG_GROUP_STATS] = {sizeof(struct epd_msg_epoch), 0, on_group_stats},
};

/* ---- receiving ---- */

static void handle(struct epd_engine *engine, const void *buf, size_t len)
{
    struct epd_control *c = engine->control;
    struct epd_msg_header h = {0};
    memcpy(&h, buf, len < sizeof(h) ? len : sizeof(h));
    if (len < sizeof(h) || h.bytes != len || h.seq == 0 || h.type == 0 ||
        h.type >= EPD_ARRAY_LEN(g_handlers) || g_handlers[h.type].handle == NULL ||
        g_handlers[h.type].bytes != len || g_handlers[h.type].n_fds != c->n_fds ||
        (!c->configured && h.type != EPD_MSG_CONFIG)) {
        log_error("bad message from the supervisor: type %u bytes %zu fds %u", h.type, len,
                  c->n_fds);
        c->state = EPD_CONTROL_BROKEN;
        return;
    }
    struct epd_error err = {.status = EPD_OK};
    bool replied = false;
    const enum epd_status status = g_handlers[h.type].handle(engine, buf, &replied, &err);
    err.status = status;
    if (!replied)
        epd_control_reply(engine, h.seq, &err);
}

bool epd_control_poll(struct epd_engine *engine)
{
    struct epd_control *c = engine->control;
    bool any = false;
    while (c->state == EPD_CONTROL_OPEN) {
        uint64_t buf[EPD_MSG_MAX_BYTES / sizeof(uint64_t)];
        size_t len;
        struct epd_error err;
        enum epd_status status =
            epd_fd_recv(c->sock, buf, sizeof(buf), &len, c->fds, FDS_MAX, &c->n_fds, &err);
        if (status == EPD_EAGAIN)
            break;
        if (status == EPD_ESESSIONLOST) {
            c->state = EPD_CONTROL_LOST;
            break;
        }
        if (status != EPD_OK) {
            log_error("bad message from the supervisor: %s", err.message);
            c->state = EPD_CONTROL_BROKEN;
            break;
        }
        handle(engine, buf, len);
        for (unsigned i = 0; i < c->n_fds; i++)
            epd_close_fd(&c->fds[i]); /* what a handler took over is -1 */
        any = true;
    }
    return any;
}

enum epd_status epd_control_create(struct epd_engine *engine, int sock, struct epd_error *err)
{
    struct epd_control *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the control channel");
    c->sock = sock;
    if (fcntl(sock, F_SETFL, O_NONBLOCK) != 0 || fcntl(sock, F_SETFD, FD_CLOEXEC) != 0) {
        free(c);
        return epd_fail_errno(err, "fcntl of the control socket");
    }
    engine->control = c;
    return EPD_OK;
}

void epd_control_destroy(struct epd_engine *engine)
{
    if (engine->control == NULL)
        return;
    epd_close_fd(&engine->control->sock);
    free(engine->control);
    engine->control = NULL;
}

enum epd_control_state epd_control_state(const struct epd_engine *engine)
{
    return engine->control->state;
}

enum epd_status epd_control_wait_config(struct epd_engine *engine, int timeout_ms,
                                        struct epd_error *err)
{
    struct epd_control *c = engine->control;
    struct pollfd p = {.fd = c->sock, .events = POLLIN};
    while (!c->configured && c->state == EPD_CONTROL_OPEN) {
        int n = poll(&p, 1, timeout_ms);
        if (n == 0)
            return epd_fail(err, EPD_ETIMEDOUT, "no CONFIG message within %d ms", timeout_ms);
        if (n < 0 && errno != EINTR)
            return epd_fail_errno(err, "poll of the control socket");
        /* One message only: the engine's other parts are created after it. */
        uint64_t buf[EPD_MSG_MAX_BYTES / sizeof(uint64_t)];
        size_t len;
        enum epd_status status =
            epd_fd_recv(c->sock, buf, sizeof(buf), &len, c->fds, FDS_MAX, &c->n_fds, err);
        if (status == EPD_EAGAIN)
            continue;
        if (status != EPD_OK)
            return status;
        handle(engine, buf, len);
    }
    return c->configured ? EPD_OK : epd_fail(err, EPD_EINVAL, "the supervisor sent no CONFIG");
}

uint32_t epd_control_workers(const struct epd_engine *engine)
{
    return engine->control->workers;
}
uint32_t epd_control_spin_us(const struct epd_engine *engine)
{
    return engine->control->spin_us;
}
