#include "client/internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/fail.h"
#include "client/fds.h"

static const struct epdc_method alloc_buffer = {EPDC_CONTROL_PREFIX "AllocBuffer",
                                                &epd__v1__buffer_reply__descriptor};
static const struct epdc_method import_buffer = {EPDC_CONTROL_PREFIX "ImportBuffer",
                                                 &epd__v1__buffer_reply__descriptor};
static const struct epdc_method free_buffer = {EPDC_CONTROL_PREFIX "FreeBuffer",
                                               &epd__v1__empty__descriptor};

static const Epd__V1__BufferReply *buffer_reply(const ProtobufCMessage *reply)
{
    return (const Epd__V1__BufferReply *)(const void *)reply;
}

/* Tell the daemon. Lock held. */
static enum epd_status free_at_daemon(struct epd *epd, uint64_t id, struct epd_error *err)
{
    Epd__V1__Session session;
    Epd__V1__FreeBufferRequest req = EPD__V1__FREE_BUFFER_REQUEST__INIT;
    epdc_session_message(epd, &session);
    req.session = &session;
    req.buffer = id;
    return epdc_session_call(epd, &free_buffer, &req.base, NULL, err);
}

static enum epd_status args_valid(struct epd *epd, uint32_t device, uint64_t bytes,
                                  struct epd_buffer **out, struct epd_error *err)
{
    if (!epd || !out)
        return epdc_fail(err, EPD_EINVAL, "%s is NULL", epd ? "out" : "epd");
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return epdc_fail(err, EPD_EINVAL, "bytes is %llu, must be at least 1",
                         (unsigned long long)bytes);
    if (device >= EPD_MAX_DEVICES)
        return epdc_fail(err, EPD_EINVAL, "device is %u, must be below %u", device,
                         EPD_MAX_DEVICES);
    return epdc_session_usable(epd, err);
}

/* Lock held. */
static void buffer_add(struct epd *epd, struct epd_buffer *b)
{
    b->next = epd->buffers;
    epd->buffers = b;
}

/* ---- part of the session's chunks ------------------------------------------------------- */

static enum epd_status chunk_take(struct epd_buffer *b, const Epd__V1__BufferReply *r,
                                  struct epd_error *err)
{
    struct epd *epd = b->epd;
    enum epd_status status = epdc_session_redeem(epd, r->grants, r->n_grants, err);
    if (status != EPD_OK)
        return status;
    b->chunk = epdc_maps_get(&epd->maps, EPDC_MAP_CHUNK, r->chunk);
    if (!b->chunk)
        return epdc_fail(err, EPD_EINTERNAL, "daemon granted no chunk %llu for the buffer",
                         (unsigned long long)r->chunk);
    if (r->offset > b->chunk->bytes || b->bytes > b->chunk->bytes - r->offset)
        return epdc_fail(err, EPD_EINTERNAL, "daemon's buffer at %llu does not fit its chunk",
                         (unsigned long long)r->offset);
    b->ptr = (char *)b->chunk->addr + r->offset;
    return EPD_OK;
}

/* Lock held. */
static enum epd_status alloc(struct epd_buffer *b, struct epd_error *err)
{
    struct epd *epd = b->epd;
    Epd__V1__Session session;
    Epd__V1__AllocBufferRequest req = EPD__V1__ALLOC_BUFFER_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    epdc_session_message(epd, &session);
    req.session = &session;
    req.device = b->device;
    req.bytes = b->bytes;
    enum epd_status status = epdc_session_call(epd, &alloc_buffer, &req.base, &reply, err);
    if (status != EPD_OK)
        return status;
    b->id = buffer_reply(reply)->buffer;
    status = chunk_take(b, buffer_reply(reply), err);
    epdc_reply_free(reply);
    if (status != EPD_OK)
        (void)free_at_daemon(epd, b->id, NULL); /* ends with the session at the latest */
    return status;
}

enum epd_status epd_buffer_alloc(struct epd *epd, uint32_t device, uint64_t bytes,
                                 struct epd_buffer **out, struct epd_error *err)
{
    enum epd_status status = args_valid(epd, device, bytes, out, err);
    if (status != EPD_OK)
        return status;
    struct epd_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return epdc_fail(err, EPD_ENOMEM, "no memory for a buffer");
    *b = (struct epd_buffer){.epd = epd, .device = device, .bytes = bytes};

    pthread_mutex_lock(&epd->lock);
    status = alloc(b, err);
    if (status == EPD_OK) {
        buffer_add(epd, b);
        *out = b;
    } else {
        epdc_buffer_destroy(b, false);
    }
    pthread_mutex_unlock(&epd->lock);
    return status;
}

/* ---- memory of the client's own --------------------------------------------------------- */

/* One ImportBuffer call; step 1 without a token, step 2 with it. Lock held. */
static enum epd_status import_step(struct epd_buffer *b, ProtobufCBinaryData token,
                                   ProtobufCMessage **reply_out, struct epd_error *err)
{
    Epd__V1__Session session;
    Epd__V1__ImportBufferRequest req = EPD__V1__IMPORT_BUFFER_REQUEST__INIT;
    epdc_session_message(b->epd, &session);
    req.session = &session;
    req.device = b->device;
    req.bytes = b->bytes;
    req.token = token;
    return epdc_session_call(b->epd, &import_buffer, &req.base, reply_out, err);
}

static enum epd_status send_memfd(const struct epd_buffer *b, int memfd, ProtobufCBinaryData token,
                                  struct epd_error *err)
{
    if (token.len != EPD_TOKEN_BYTES)
        return epdc_fail(err, EPD_EINTERNAL, "daemon's import token has %zu bytes", token.len);
    const struct epdc_redeem redeem = {
        .path = b->epd->fd_socket,
        .token = token.data,
        .timeout_ns = b->epd->transport.timeout_ns,
        .expect = EPD_FD_REPLY_IMPORT,
        .send_fd = memfd,
    };
    return epdc_redeem(&redeem, NULL, err);
}

/* Lock held. */
static enum epd_status import(struct epd_buffer *b, int memfd, struct epd_error *err)
{
    ProtobufCMessage *first = NULL, *second = NULL;
    enum epd_status status = import_step(b, (ProtobufCBinaryData){0, NULL}, &first, err);
    if (status != EPD_OK)
        return status;
    status = send_memfd(b, memfd, buffer_reply(first)->token, err);
    if (status == EPD_OK)
        status = import_step(b, buffer_reply(first)->token, &second, err);
    epdc_reply_free(first);
    if (status != EPD_OK)
        return status;
    b->id = buffer_reply(second)->buffer;
    epdc_reply_free(second);
    return EPD_OK;
}

static enum epd_status memfd_map(struct epd_buffer *b, int memfd, struct epd_error *err)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int seals = fcntl(memfd, F_GET_SEALS);
    if (seals < 0)
        return epdc_fail(err, EPD_EINVAL, "memfd %d is not a memfd that can be sealed", memfd);
    if ((seals & need) != need)
        return epdc_fail(err, EPD_EINVAL,
                         "memfd %d: add the seals F_SEAL_SHRINK, F_SEAL_GROW and "
                         "F_SEAL_SEAL (it has %#x)",
                         memfd, (unsigned)seals);
    void *addr = mmap(NULL, (size_t)b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (addr == MAP_FAILED)
        return epdc_fail_errno(err, "memfd %d: mmap of %llu bytes", memfd,
                               (unsigned long long)b->bytes);
    (void)madvise(addr, (size_t)b->bytes, MADV_DONTFORK); /* as all buffers, see maps.h */
    b->ptr = addr;
    return EPD_OK;
}

enum epd_status epd_buffer_import(struct epd *epd, uint32_t device, int memfd, uint64_t bytes,
                                  struct epd_buffer **out, struct epd_error *err)
{
    enum epd_status status = args_valid(epd, device, bytes, out, err);
    if (status != EPD_OK)
        return status;
    struct epd_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return epdc_fail(err, EPD_ENOMEM, "no memory for a buffer");
    *b = (struct epd_buffer){.epd = epd, .device = device, .bytes = bytes};

    pthread_mutex_lock(&epd->lock);
    status = memfd_map(b, memfd, err);
    if (status == EPD_OK)
        status = import(b, memfd, err);
    if (status == EPD_OK) {
        buffer_add(epd, b);
        *out = b;
    } else {
        epdc_buffer_destroy(b, false);
    }
    pthread_mutex_unlock(&epd->lock);
    return status;
}

/* ---- the rest --------------------------------------------------------------------------- */

void epdc_buffer_destroy(struct epd_buffer *buffer, bool forked)
{
    if (!forked && buffer->chunk)
        epdc_map_put(buffer->chunk);
    else if (!forked && buffer->ptr)
        (void)munmap(buffer->ptr, (size_t)buffer->bytes); /* our own mapping */
    free(buffer);
}

/* Lock held. */
static enum epd_status release_buffer(struct epd_buffer *buffer, struct epd_error *err)
{
    struct epd *epd = buffer->epd;
    if (buffer->ops != 0)
        return epdc_fail(err, EPD_EBUSY, "buffer %llu: %u ops are bound to it; unbind them first",
                         (unsigned long long)buffer->id, buffer->ops);
    if (epdc_session_lost(epd) == EPD_OK) {
        enum epd_status status = free_at_daemon(epd, buffer->id, err);
        if (status == EPD_EBUSY || status == EPD_ETIMEDOUT)
            return status; /* the daemon may still use it: keep it, the caller may try again */
    }
    for (struct epd_buffer **at = &epd->buffers; *at; at = &(*at)->next) {
        if (*at == buffer) {
            *at = buffer->next;
            break;
        }
    }
    epdc_buffer_destroy(buffer, false);
    return EPD_OK;
}

enum epd_status epd_buffer_free(struct epd_buffer *buffer, struct epd_error *err)
{
    if (!buffer)
        return EPD_OK;
    struct epd *epd = buffer->epd;
    if (epdc_owner_forked(&epd->owner))
        return epdc_fail(err, EPD_EFORKED, "buffer belongs to the parent process %d",
                         (int)epd->owner.pid);
    pthread_mutex_lock(&epd->lock);
    enum epd_status status = release_buffer(buffer, err);
    pthread_mutex_unlock(&epd->lock);
    return status;
}

void *epd_buffer_ptr(const struct epd_buffer *buffer)
{
    return buffer->ptr;
}

uint64_t epd_buffer_bytes(const struct epd_buffer *buffer)
{
    return buffer->bytes;
}

uint32_t epd_buffer_device(const struct epd_buffer *buffer)
{
    return buffer->device;
}
