#include "daemon/core/buffer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/grant.h"
#include "daemon/core/must.h"
#include "daemon/core/offload.h"
#include "daemon/ipc/memfd.h"

#define BUFFERS_PER_SESSION 4096u
#define PAGE_BYTES 4096u

struct epd_buffer {
    struct epd_handle handle;
    struct epd_session *session; /* borrowed */
    struct epd_range range;      /* bytes: as asked for */
    unsigned ops;                /* bound to it */
};

/* A call on its way. */
struct making {
    struct epd_session *session;
    uint64_t bytes;
    epd_buffer_fn fn;
    void *arg;
};

/* ---- table ---- */

static enum epd_status buffer_new(struct epd_session *session, const struct epd_range *range,
                                  struct epd_buffer **out, struct epd_error *err)
{
    struct epd_buffer *b = epd_must_calloc(sizeof(*b));
    enum epd_status status = epd_handles_add(&session->core->buffers, b, &b->handle, err);
    if (status != EPD_OK) {
        free(b);
        return status;
    }
    b->session = session;
    b->range = *range;
    session->n_buffers++;
    *out = b;
    return EPD_OK;
}

static void buffer_remove(struct epd_buffer *b)
{
    b->session->n_buffers--;
    epd_handles_remove(&b->session->core->buffers, b->handle);
    free(b);
}

enum epd_status epd_buffer_get(struct epd_session *session, uint64_t id, struct epd_buffer **out,
                               struct epd_error *err)
{
    void *found;
    enum epd_status status =
        epd_handles_get(&session->core->buffers, epd_handle_unpack(id), &found, err);
    if (status != EPD_OK) {
        (void)epd_fail_prefix(err, "buffer");
        return status;
    }
    struct epd_buffer *b = found;
    if (b->session != session)
        return epd_fail(err, EPD_ENOENT, "buffer %llu is not this session's",
                        (unsigned long long)id);
    *out = b;
    return EPD_OK;
}

void epd_buffer_look(const struct epd_buffer *b, struct epd_buffer_view *out)
{
    *out = (struct epd_buffer_view){
        .chunk = b->range.chunk,
        .offset = b->range.offset,
        .bytes = b->range.bytes,
        .device = b->range.chunk->device,
        .import = b->range.chunk->kind == EPD_CHUNK_IMPORT,
    };
}

void epd_buffer_hold(struct epd_buffer *b)
{
    b->ops++;
}

void epd_buffer_release(struct epd_buffer *b)
{
    epd_assert(b->ops > 0);
    b->ops--;
}

enum epd_status epd_buffer_free(struct epd_session *session, uint64_t id, struct epd_error *err)
{
    struct epd_buffer *b = NULL;
    enum epd_status status = epd_buffer_get(session, id, &b, err);
    if (status != EPD_OK)
        return status;
    epd_assert(b != NULL);
    if (b->ops != 0)
        return epd_fail(err, EPD_EBUSY, "%u ops are bound to the buffer; unbind them first",
                        b->ops);
    if (b->range.chunk->kind == EPD_CHUNK_IMPORT)
        epd_chunk_drop(session->core, b->range.chunk);
    else
        epd_chunk_give_range(session->core, &b->range);
    buffer_remove(b);
    return EPD_OK;
}

void epd_buffer_drop_session(struct epd_session *session)
{
    uint32_t cursor = 0;
    if (session->n_buffers == 0)
        return;
    for (struct epd_buffer *b; (b = epd_handles_next(&session->core->buffers, &cursor)) != NULL;) {
        if (b->session != session)
            continue;
        epd_assert(b->ops == 0);
        buffer_remove(b);
    }
}

/* ---- making ---- */

static enum epd_status check(const struct epd_session *session, uint32_t device, uint64_t bytes,
                             struct epd_error *err)
{
    if (device >= session->core->n_devices)
        return epd_fail(err, EPD_EINVAL, "device %u, the devices are 0..%u", device,
                        session->core->n_devices - 1);
    if (bytes == 0)
        return epd_fail(err, EPD_EINVAL, "bytes must be at least 1");
    if (bytes > UINT64_MAX / 4)
        return epd_fail(err, EPD_EINVAL, "bytes %llu is too large", (unsigned long long)bytes);
    if (session->n_buffers >= BUFFERS_PER_SESSION)
        return epd_fail(err, EPD_ELIMIT, "the session has %u buffers, as many as it may",
                        session->n_buffers);
    return EPD_OK;
}

static void fail(epd_buffer_fn fn, void *arg, const struct epd_error *err)
{
    fn(arg, NULL, err);
}

static struct making *making_new(struct epd_session *session, uint64_t bytes, epd_buffer_fn fn,
                                 void *arg)
{
    struct making *m = epd_must_calloc(sizeof(*m));
    *m = (struct making){.session = session, .bytes = bytes, .fn = fn, .arg = arg};
    return m;
}

static void on_range(void *arg, const struct epd_range *range, const struct epd_error *err)
{
    struct making *m = arg;
    struct epd_buffer_info info = {.bytes = m->bytes};
    struct epd_error why;
    struct epd_buffer *b = NULL;
    enum epd_status status = EPD_OK;
    if (err != NULL) {
        why = *err;
        status = err->status;
    } else if (m->session->state != EPD_SESSION_ACTIVE) {
        status = epd_fail(&why, EPD_ESESSIONLOST, "the session has ended");
    }
    if (status == EPD_OK)
        status = buffer_new(m->session, range, &b, &why);
    if (status == EPD_OK)
        status =
            epd_session_grant_chunk(m->session, range->chunk, info.grants, &info.n_grants, &why);
    if (status == EPD_OK) {
        info.buffer = epd_handle_pack(b->handle);
        info.chunk = range->chunk->id;
        info.offset = range->offset;
        m->fn(m->arg, &info, NULL);
    } else {
        if (err == NULL)
            epd_chunk_give_range(m->session->core, range);
        if (b != NULL)
            buffer_remove(b);
        fail(m->fn, m->arg, &why);
    }
    free(m);
}

void epd_buffer_create(struct epd_session *session, uint32_t device, uint64_t bytes,
                       epd_buffer_fn fn, void *arg)
{
    struct epd_error err;
    if (check(session, device, bytes, &err) != EPD_OK) {
        fail(fn, arg, &err);
        return;
    }
    const struct epd_chunk_spec spec = {
        .kind = EPD_CHUNK_BUFFERS, .device = device, .bytes = bytes, .session = session};
    epd_chunk_take_range(&spec, session->core->config->chunk_bytes, on_range,
                         making_new(session, bytes, fn, arg));
}

/* ---- import ---- */

static void on_imported(void *arg, struct epd_chunk *chunk, const struct epd_error *err)
{
    struct making *m = arg;
    struct epd_session *session = m->session;
    struct epd_buffer_info info = {.bytes = m->bytes};
    struct epd_range range = {.chunk = chunk, .bytes = m->bytes};
    struct epd_error why;
    struct epd_buffer *b;
    enum epd_status status = EPD_OK;
    session->pending--;
    if (err != NULL) {
        why = *err;
        status = err->status;
    } else if (session->state != EPD_SESSION_ACTIVE) {
        status = epd_fail(&why, EPD_ESESSIONLOST, "the session has ended");
    }
    if (status == EPD_OK)
        status = buffer_new(session, &range, &b, &why);
    if (status == EPD_OK) {
        epd_assert(chunk != NULL);
        info.buffer = epd_handle_pack(b->handle);
        info.chunk = chunk->id;
        m->fn(m->arg, &info, NULL);
    } else {
        if (err == NULL)
            epd_chunk_drop(session->core, chunk);
        fail(m->fn, m->arg, &why);
    }
    free(m);
    epd_session_settle(session);
}

static enum epd_status take_memfd(struct epd_session *session,
                                  const struct epd_import_request *request, int *fd_out,
                                  struct epd_error *err)
{
    struct epd_grants *grants = session->core->grants;
    if (request->token_len != EPD_TOKEN_BYTES)
        return epd_fail(err, EPD_EINVAL, "token has %zu bytes, must have none or 16",
                        request->token_len);
    struct epd_grant *grant = epd_grants_find(grants, request->token, &session->peer);
    if (grant == NULL || grant->kind != EPD_GRANT_IMPORT || grant->session != session->id)
        return epd_fail(err, EPD_ENOENT, "no import with this token; tokens last %u s",
                        EPD_GRANT_TTL_MS / 1000u);
    if (grant->device != request->device || grant->bytes != request->bytes)
        return epd_fail(err, EPD_EINVAL, "device or bytes differ from those of the first call");
    if (grant->fd < 0)
        return epd_fail(err, EPD_EAGAIN, "no memfd has come with this token yet");
    *fd_out = epd_steal_fd(&grant->fd);
    epd_grants_remove(grants, grant);
    return EPD_OK;
}

static enum epd_status issue_token(struct epd_session *session,
                                   const struct epd_import_request *request,
                                   struct epd_buffer_info *info, struct epd_error *err)
{
    const struct epd_grant grant = {
        .kind = EPD_GRANT_IMPORT,
        .peer = session->peer,
        .session = session->id,
        .fd = -1,
        .device = request->device,
        .bytes = request->bytes,
    };
    info->has_token = true;
    return epd_grants_issue(session->core->grants, &grant, info->token, err);
}

/* Holes of the memfd are filled, which may take long. */
struct checking {
    struct epd_session *session;
    struct epd_chunk_spec spec;
    int fd; /* owned */
    enum epd_status status;
    struct epd_error err;
    struct making *making;
};

static void check_work(void *arg)
{
    struct checking *c = arg;
    c->status = epd_memfd_check_import(c->fd, c->spec.bytes, &c->err);
}

static void check_done(void *arg)
{
    struct checking *c = arg;
    if (c->status == EPD_OK && c->session->state != EPD_SESSION_ACTIVE)
        c->status = epd_fail(&c->err, EPD_ESESSIONLOST, "the session has ended");
    else if (c->status != EPD_OK)
        (void)epd_fail_prefix(&c->err, "memfd");
    if (c->status == EPD_OK)
        epd_chunk_import(c->session->core, &c->spec, epd_steal_fd(&c->fd), on_imported, c->making);
    else
        on_imported(c->making, NULL, &c->err);
    epd_close_fd(&c->fd);
    free(c);
}

void epd_buffer_import(struct epd_session *session, const struct epd_import_request *request,
                       epd_buffer_fn fn, void *arg)
{
    struct epd_buffer_info info = {.bytes = request->bytes};
    struct epd_error err;
    int fd = -1;
    const uint64_t bytes = (request->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    enum epd_status status = check(session, request->device, request->bytes, &err);
    if (status == EPD_OK)
        status = epd_session_may_hold(session, bytes, &err);
    if (status == EPD_OK && request->token_len == 0) {
        status = issue_token(session, request, &info, &err);
        if (status == EPD_OK) {
            fn(arg, &info, NULL);
            return;
        }
    }
    if (status == EPD_OK)
        status = take_memfd(session, request, &fd, &err);
    if (status != EPD_OK) {
        fail(fn, arg, &err);
        return;
    }
    struct checking *c = epd_must_calloc(sizeof(*c));
    *c = (struct checking){.session = session, .fd = fd};
    c->spec = (struct epd_chunk_spec){
        .kind = EPD_CHUNK_IMPORT, .device = request->device, .bytes = bytes, .session = session};
    c->making = making_new(session, request->bytes, fn, arg);
    session->pending++;
    if (bytes >= EPD_OFFLOAD_BYTES) {
        epd_offload(session->core, check_work, check_done, c);
        return;
    }
    check_work(c);
    check_done(c);
}
