#define EPD_LOG_COMPONENT "chunk"
#include "daemon/core/chunk.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/must.h"
#include "daemon/core/offload.h"
#include "daemon/core/session.h"
#include "daemon/ipc/memfd.h"

/* A chunk on its way to be ready. */
struct making {
    struct epd_core *core;
    struct epd_chunk *chunk;
    epd_chunk_fn done;
    void *arg;
};

/* ---- list ---- */

static void unlink_chunk(struct epd_core *core, struct epd_chunk *chunk)
{
    struct epd_chunk **at = &core->chunks;
    while (*at != chunk)
        at = &(*at)->next;
    *at = chunk->next;
}

static void chunk_free(struct epd_core *core, struct epd_chunk *chunk)
{
    unlink_chunk(core, chunk);
    if (chunk->session != NULL)
        chunk->session->bytes -= chunk->bytes;
    epd_alloc_destroy(chunk->alloc);
    if (chunk->fd >= 0)
        epd_offload_close(core, chunk->fd, chunk->bytes);
    free(chunk);
}

static enum epd_status chunk_new(struct epd_core *core, const struct epd_chunk_spec *spec,
                                 struct epd_chunk **out, struct epd_error *err)
{
    struct epd_alloc *alloc = NULL;
    enum epd_status status = EPD_OK;
    if (spec->session != NULL)
        status = epd_session_may_hold(spec->session, spec->bytes, err);
    if (status == EPD_OK && (spec->kind == EPD_CHUNK_RINGS || spec->kind == EPD_CHUNK_BUFFERS))
        status = epd_alloc_create(spec->bytes, &alloc, err);
    if (status != EPD_OK)
        return status;
    struct epd_chunk *chunk = epd_must_calloc(sizeof(*chunk));
    *chunk = (struct epd_chunk){
        .id = ++core->last_chunk,
        .bytes = spec->bytes,
        .kind = spec->kind,
        .device = spec->device,
        .fd = -1,
        .session = spec->session,
        .group = spec->group,
        .alloc = alloc,
        .next = core->chunks,
    };
    core->chunks = chunk;
    if (chunk->session != NULL)
        chunk->session->bytes += chunk->bytes;
    *out = chunk;
    return EPD_OK;
}

/* ---- telling engines ---- */

static bool needs(const struct epd_chunk *chunk, unsigned device)
{
    if (chunk->kind == EPD_CHUNK_EXCHANGE)
        return (chunk->group->devices >> device & 1u) != 0;
    return chunk->kind != EPD_CHUNK_RINGS || chunk->device == device;
}

static struct epd_msg_chunk message(const struct epd_chunk *chunk, enum epd_msg_type type)
{
    return (struct epd_msg_chunk){
        .h = {.type = (uint16_t)type, .bytes = sizeof(struct epd_msg_chunk)},
        .chunk = chunk->id,
        .bytes = chunk->bytes,
        .kind = chunk->kind,
        .device = chunk->device,
    };
}

static void adopt(struct epd_chunk *chunk, struct epd_device *device, struct epd_join *join)
{
    const unsigned index = epd_device_index(device);
    if (!needs(chunk, index) || !epd_device_configured(device) ||
        epd_known_to(device, chunk->known[index]))
        return;
    struct epd_msg_chunk msg = message(chunk, EPD_MSG_CHUNK_ADOPT);
    chunk->known[index] = epd_device_incarnation(device);
    epd_join_request(join, device, &msg.h, chunk->fd);
}

void epd_chunk_replay(struct epd_core *core, struct epd_device *device, struct epd_join *join)
{
    for (struct epd_chunk *chunk = core->chunks; chunk != NULL; chunk = chunk->next)
        if (chunk->fd >= 0)
            adopt(chunk, device, join);
}

void epd_chunk_drop(struct epd_core *core, struct epd_chunk *chunk)
{
    if (chunk == NULL)
        return;
    for (unsigned i = 0; i < core->n_devices; i++) {
        if (!epd_known_to(core->device[i], chunk->known[i]))
            continue;
        struct epd_msg_chunk msg = message(chunk, EPD_MSG_CHUNK_DROP);
        (void)epd_device_request(core->device[i], &msg.h, NULL, 0, NULL, NULL); /* is configured */
    }
    chunk_free(core, chunk);
}

/* ---- making ---- */

static void finish(struct making *m, const struct epd_error *err)
{
    if (err == NULL) {
        m->chunk->ready = true;
    } else {
        epd_chunk_drop(m->core, m->chunk);
        m->chunk = NULL;
    }
    m->done(m->arg, m->chunk, err);
    free(m);
}

static void on_adopted(void *arg, const struct epd_error *err)
{
    finish(arg, err);
}

static void adopt_all(struct making *m)
{
    struct epd_join *join = epd_join_create(true, on_adopted, m);
    for (unsigned i = 0; i < m->core->n_devices; i++)
        adopt(m->chunk, m->core->device[i], join);
    epd_join_seal(join);
}

static void on_created(void *arg, const struct epd_link_reply *reply)
{
    struct making *m = arg;
    struct epd_chunk *chunk = m->chunk;
    struct epd_error err;
    if (reply->err != NULL) {
        err = *reply->err;
        chunk->known[chunk->device] = 0;
        if (reply->msg != NULL)
            (void)epd_fail_prefix(&err, "%llu bytes on device %u", (unsigned long long)chunk->bytes,
                                  chunk->device);
        finish(m, &err);
    } else if (reply->n_fds != 1) {
        (void)epd_fail(&err, EPD_EINTERNAL, "engine answered CHUNK_CREATE without a descriptor");
        finish(m, &err);
    } else {
        chunk->fd = epd_steal_fd(&reply->fds[0]);
        adopt_all(m);
    }
}

static struct making *make(struct epd_core *core, const struct epd_chunk_spec *spec,
                           epd_chunk_fn done, void *arg)
{
    struct epd_error err;
    struct epd_chunk *chunk;
    if (chunk_new(core, spec, &chunk, &err) != EPD_OK) {
        done(arg, NULL, &err);
        return NULL;
    }
    struct making *m = epd_must_calloc(sizeof(*m));
    *m = (struct making){.core = core, .chunk = chunk, .done = done, .arg = arg};
    return m;
}

void epd_chunk_create(struct epd_core *core, const struct epd_chunk_spec *spec, epd_chunk_fn done,
                      void *arg)
{
    struct epd_device *device = core->device[spec->device];
    struct making *m = make(core, spec, done, arg);
    if (m == NULL)
        return;
    struct epd_msg_chunk msg = message(m->chunk, EPD_MSG_CHUNK_CREATE);
    m->chunk->known[spec->device] = epd_device_incarnation(device);
    if (epd_device_running(device) &&
        epd_device_request(device, &msg.h, NULL, 0, on_created, m) == EPD_OK)
        return;
    struct epd_error err;
    (void)epd_fail(&err, EPD_EDEVICE, "device %u is %s; try again when it runs", spec->device,
                   epd_device_state_name(device));
    m->chunk->known[spec->device] = 0;
    finish(m, &err);
}

void epd_chunk_import(struct epd_core *core, const struct epd_chunk_spec *spec, int fd,
                      epd_chunk_fn done, void *arg)
{
    struct making *m = make(core, spec, done, arg);
    if (m == NULL) {
        epd_close_fd(&fd);
        return;
    }
    m->chunk->fd = fd;
    adopt_all(m);
}

/* ---- contents ---- */

/* Zeroing a range; the chunk may go meanwhile. */
struct clearing {
    struct epd_core *core;
    uint64_t chunk, offset, bytes, chunk_bytes;
    int fd; /* owned */
    enum epd_status status;
    struct epd_error err;
};

static void clear_work(void *arg)
{
    struct clearing *c = arg;
    void *base;
    if (fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)c->offset,
                  (off_t)c->bytes) == 0)
        return;
    /* Not a file that can have holes. */
    c->status = epd_memfd_map(c->fd, c->chunk_bytes, true, &base, &c->err);
    if (c->status != EPD_OK)
        return;
    memset((char *)base + c->offset, 0, c->bytes);
    epd_memfd_unmap(base, c->chunk_bytes);
}

static void clear_done(void *arg)
{
    struct clearing *c = arg;
    struct epd_chunk *chunk = c->core->chunks;
    while (chunk != NULL && chunk->id != c->chunk)
        chunk = chunk->next;
    /* What cannot be zeroed is not used again: it stays taken until the chunk goes. */
    if (c->status != EPD_OK)
        log_warn("chunk %llu: a range is lost until its session ends: %s",
                 (unsigned long long)c->chunk, c->err.message);
    else if (chunk != NULL)
        epd_alloc_give(chunk->alloc, c->offset, c->bytes);
    epd_close_fd(&c->fd);
    free(c);
}

void epd_chunk_give_range(struct epd_core *core, const struct epd_range *range)
{
    struct clearing *c = epd_must_calloc(sizeof(*c));
    /* The allocator deals in pages: what was asked for in part is used in whole. */
    const uint64_t bytes = (range->bytes + EPD_ALLOC_ALIGN - 1) / EPD_ALLOC_ALIGN * EPD_ALLOC_ALIGN;
    *c = (struct clearing){.core = core,
                           .chunk = range->chunk->id,
                           .offset = range->offset,
                           .bytes = bytes,
                           .chunk_bytes = range->chunk->bytes,
                           .fd = fcntl(range->chunk->fd, F_DUPFD_CLOEXEC, 0)};
    if (c->fd < 0)
        c->status = epd_fail_errno(&c->err, "duplicate its descriptor");
    if (c->fd >= 0 && bytes >= EPD_OFFLOAD_BYTES) {
        epd_offload(core, clear_work, clear_done, c);
        return;
    }
    if (c->fd >= 0)
        clear_work(c);
    clear_done(c);
}

/* ---- ranges ---- */

struct taking {
    struct epd_session *session;
    uint64_t bytes;
    epd_range_fn done;
    void *arg;
};

static void on_range_chunk(void *arg, struct epd_chunk *chunk, const struct epd_error *err)
{
    struct taking *t = arg;
    struct epd_range range = {.chunk = chunk, .bytes = t->bytes};
    if (err == NULL)
        epd_assert(epd_alloc_take(chunk->alloc, t->bytes, &range.offset));
    t->session->pending--;
    t->done(t->arg, err == NULL ? &range : NULL, err);
    epd_session_settle(t->session);
    free(t);
}

void epd_chunk_take_range(const struct epd_chunk_spec *spec, uint64_t least, epd_range_fn done,
                          void *arg)
{
    struct epd_core *core = spec->session->core;
    for (struct epd_chunk *c = core->chunks; c != NULL; c = c->next) {
        struct epd_range range = {.chunk = c, .bytes = spec->bytes};
        if (c->session != spec->session || c->kind != spec->kind || c->device != spec->device ||
            !c->ready || !epd_alloc_take(c->alloc, spec->bytes, &range.offset))
            continue;
        done(arg, &range, NULL);
        return;
    }
    struct epd_error err;
    if (spec->bytes > UINT64_MAX / 2) {
        (void)epd_fail(&err, EPD_EINVAL, "bytes %llu is too large",
                       (unsigned long long)spec->bytes);
        done(arg, NULL, &err);
        return;
    }
    struct epd_chunk_spec whole = *spec;
    whole.bytes = spec->bytes > least ? spec->bytes : least;
    whole.bytes = (whole.bytes + EPD_CHUNK_STEP - 1) / EPD_CHUNK_STEP * EPD_CHUNK_STEP;
    struct taking *t = epd_must_calloc(sizeof(*t));
    *t = (struct taking){.session = spec->session, .bytes = spec->bytes, .done = done, .arg = arg};
    spec->session->pending++;
    epd_chunk_create(core, &whole, on_range_chunk, t);
}
