#include "daemon/core/alloc.h"

#include <stddef.h>
#include <stdlib.h>

#include "daemon/base/util.h"

struct hole {
    uint64_t offset, bytes;
    struct hole *next; /* owned; higher offset */
};

struct epd_alloc {
    uint64_t bytes, used;
    struct hole *holes; /* owned */
};

static struct hole *hole_new(uint64_t offset, uint64_t bytes, struct hole *next)
{
    struct hole *h = malloc(sizeof(*h));
    if (h != NULL)
        *h = (struct hole){.offset = offset, .bytes = bytes, .next = next};
    return h;
}

static bool round_up(uint64_t bytes, uint64_t *out)
{
    if (bytes == 0 || bytes > UINT64_MAX - EPD_ALLOC_ALIGN)
        return false;
    *out = (bytes + EPD_ALLOC_ALIGN - 1) & ~(uint64_t)(EPD_ALLOC_ALIGN - 1);
    return true;
}

enum epd_status epd_alloc_create(uint64_t bytes, struct epd_alloc **out, struct epd_error *err)
{
    epd_assert(bytes != 0 && bytes % EPD_ALLOC_ALIGN == 0);
    struct epd_alloc *alloc = calloc(1, sizeof(*alloc));
    struct hole *all = hole_new(0, bytes, NULL);
    if (alloc == NULL || all == NULL) {
        free(alloc);
        free(all);
        return epd_fail(err, EPD_ENOMEM, "no memory for an allocator");
    }
    *alloc = (struct epd_alloc){.bytes = bytes, .holes = all};
    *out = alloc;
    return EPD_OK;
}

void epd_alloc_destroy(struct epd_alloc *alloc)
{
    if (alloc == NULL)
        return;
    while (alloc->holes != NULL) {
        struct hole *h = alloc->holes;
        alloc->holes = h->next;
        free(h);
    }
    free(alloc);
}

bool epd_alloc_take(struct epd_alloc *alloc, uint64_t bytes, uint64_t *offset_out)
{
    uint64_t want;
    if (!round_up(bytes, &want))
        return false;
    for (struct hole **at = &alloc->holes; *at != NULL; at = &(*at)->next) {
        struct hole *h = *at;
        if (h->bytes < want)
            continue;
        *offset_out = h->offset;
        h->offset += want;
        h->bytes -= want;
        if (h->bytes == 0) {
            *at = h->next;
            free(h);
        }
        alloc->used += want;
        return true;
    }
    return false;
}

void epd_alloc_give(struct epd_alloc *alloc, uint64_t offset, uint64_t bytes)
{
    uint64_t size = 0;
    epd_assert(round_up(bytes, &size) && size <= alloc->used);
    epd_assert(offset % EPD_ALLOC_ALIGN == 0 && offset <= alloc->bytes - size);
    struct hole **at = &alloc->holes;
    struct hole *before = NULL;
    while (*at != NULL && (*at)->offset < offset) {
        before = *at;
        at = &before->next;
    }
    struct hole *after = *at;
    epd_assert(before == NULL || before->offset + before->bytes <= offset);
    epd_assert(after == NULL || offset + size <= after->offset);
    alloc->used -= size;
    const bool joins_before = before != NULL && before->offset + before->bytes == offset;
    const bool joins_after = after != NULL && offset + size == after->offset;
    if (joins_before) {
        before->bytes += size;
        if (joins_after) {
            before->bytes += after->bytes;
            before->next = after->next;
            free(after);
        }
    } else if (joins_after) {
        after->offset = offset;
        after->bytes += size;
    } else {
        /* Without memory for the note the range stays unused until the chunk goes. */
        struct hole *h = hole_new(offset, size, after);
        if (h != NULL)
            *at = h;
    }
}

uint64_t epd_alloc_used(const struct epd_alloc *alloc)
{
    return alloc->used;
}
