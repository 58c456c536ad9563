#include "daemon/engine/engine.h"

#include <stdlib.h>

#include "daemon/base/util.h"
#include "daemon/engine/transport.h"

/* Chunk ids grow without bound while the number alive is small (tens): an open-addressed table of
 * pointers, so that a struct epd_chunk never moves. */
struct epd_chunks {
    const struct epd_transport_ops *transport;
    struct epd_chunk **slots; /* owned; NULL: free */
    uint32_t n_slots;         /* power of two */
    uint32_t used;
    uint64_t bytes;
};

static uint32_t slot_of(const struct epd_chunks *chunks, uint64_t id)
{
    uint32_t i = (uint32_t)(id * 0x9E3779B97F4A7C15ull >> 32) & (chunks->n_slots - 1);
    while (chunks->slots[i] != NULL && chunks->slots[i]->id != id)
        i = (i + 1) & (chunks->n_slots - 1);
    return i;
}

enum epd_status epd_chunks_create(const struct epd_transport_ops *transport,
                                  struct epd_chunks **out, struct epd_error *err)
{
    struct epd_chunks *chunks = calloc(1, sizeof(*chunks));
    struct epd_chunk **slots = calloc(64, sizeof(*slots));
    if (chunks == NULL || slots == NULL) {
        free(chunks);
        free(slots);
        return epd_fail(err, EPD_ENOMEM, "no memory for the chunk table");
    }
    *chunks = (struct epd_chunks){.transport = transport, .slots = slots, .n_slots = 64};
    *out = chunks;
    return EPD_OK;
}

void epd_chunks_destroy(struct epd_chunks *chunks)
{
    if (chunks == NULL)
        return;
    for (uint32_t i = 0; i < chunks->n_slots; i++) {
        if (chunks->slots[i] == NULL)
            continue;
        chunks->transport->chunk_unmap(chunks->slots[i]->base, chunks->slots[i]->bytes);
        free(chunks->slots[i]);
    }
    free(chunks->slots);
    free(chunks);
}

static enum epd_status grow(struct epd_chunks *chunks, struct epd_error *err)
{
    struct epd_chunk **old = chunks->slots;
    const uint32_t n_old = chunks->n_slots;
    struct epd_chunk **slots = calloc(2 * (size_t)n_old, sizeof(*slots));
    if (slots == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the chunk table");
    chunks->slots = slots;
    chunks->n_slots = 2 * n_old;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i] != NULL)
            chunks->slots[slot_of(chunks, old[i]->id)] = old[i];
    free(old);
    return EPD_OK;
}

static enum epd_status check(struct epd_chunks *chunks, const struct epd_msg_chunk *msg,
                             struct epd_error *err)
{
    if (msg->chunk == 0 || msg->bytes == 0 || msg->bytes % 4096 != 0)
        return epd_fail(err, EPD_EINVAL,
                        "chunk %llu of %llu bytes: the id must not be 0, the size "
                        "a multiple of 4096",
                        (unsigned long long)msg->chunk, (unsigned long long)msg->bytes);
    if (msg->kind < EPD_CHUNK_EXCHANGE || msg->kind > EPD_CHUNK_IMPORT)
        return epd_fail(err, EPD_EINVAL, "chunk kind %u is unknown", msg->kind);
    if (msg->device >= EPD_MAX_DEVICES)
        return epd_fail(err, EPD_EINVAL, "chunk device is %u, above %u", msg->device,
                        EPD_MAX_DEVICES - 1u);
    if (epd_chunks_find(chunks, msg->chunk) != NULL)
        return epd_fail(err, EPD_EEXIST, "chunk %llu is mapped", (unsigned long long)msg->chunk);
    return chunks->used * 2 >= chunks->n_slots ? grow(chunks, err) : EPD_OK;
}

static enum epd_status insert(struct epd_chunks *chunks, const struct epd_msg_chunk *msg,
                              void *base, struct epd_error *err)
{
    struct epd_chunk *chunk = malloc(sizeof(*chunk));
    if (chunk == NULL) {
        chunks->transport->chunk_unmap(base, msg->bytes);
        return epd_fail(err, EPD_ENOMEM, "no memory for a chunk");
    }
    *chunk = (struct epd_chunk){.id = msg->chunk,
                                .bytes = msg->bytes,
                                .kind = msg->kind,
                                .device = msg->device,
                                .base = base};
    chunks->slots[slot_of(chunks, msg->chunk)] = chunk;
    chunks->used++;
    chunks->bytes += msg->bytes;
    return EPD_OK;
}

enum epd_status epd_chunks_add_new(struct epd_chunks *chunks, const struct epd_msg_chunk *msg,
                                   int *fd_out, struct epd_error *err)
{
    void *base;
    EPD_AUTO_CLOSE int fd = -1;
    enum epd_status status = check(chunks, msg, err);
    if (status == EPD_OK)
        status = chunks->transport->chunk_create(msg->bytes, &base, &fd, err);
    if (status == EPD_OK)
        status = insert(chunks, msg, base, err);
    if (status == EPD_OK)
        *fd_out = epd_steal_fd(&fd);
    return status;
}

enum epd_status epd_chunks_adopt(struct epd_chunks *chunks, const struct epd_msg_chunk *msg, int fd,
                                 struct epd_error *err)
{
    void *base;
    enum epd_status status = check(chunks, msg, err);
    if (status == EPD_OK)
        status =
            chunks->transport->chunk_map(fd, msg->bytes, msg->kind == EPD_CHUNK_IMPORT, &base, err);
    return status == EPD_OK ? insert(chunks, msg, base, err) : status;
}

enum epd_status epd_chunks_drop(struct epd_chunks *chunks, uint64_t id, struct epd_error *err)
{
    uint32_t i = slot_of(chunks, id);
    struct epd_chunk *chunk = chunks->slots[i];
    if (chunk == NULL)
        return epd_fail(err, EPD_ENOENT, "chunk %llu is not mapped", (unsigned long long)id);
    chunks->slots[i] = NULL;
    chunks->used--;
    chunks->bytes -= chunk->bytes;
    chunks->transport->chunk_unmap(chunk->base, chunk->bytes);
    free(chunk);
    /* Close the gap: entries after it may have probed over it. */
    for (i = (i + 1) & (chunks->n_slots - 1); chunks->slots[i] != NULL;
         i = (i + 1) & (chunks->n_slots - 1)) {
        struct epd_chunk *moved = chunks->slots[i];
        chunks->slots[i] = NULL;
        chunks->slots[slot_of(chunks, moved->id)] = moved;
    }
    return EPD_OK;
}

const struct epd_chunk *epd_chunks_find(const struct epd_chunks *chunks, uint64_t id)
{
    return chunks->slots[slot_of(chunks, id)];
}

void epd_chunks_totals(const struct epd_chunks *chunks, uint64_t *count, uint64_t *bytes)
{
    *count = chunks->used;
    *bytes = chunks->bytes;
}
