/* Table of objects keyed by {index, generation}: what clients are given instead of pointers. A
 * stale id is told apart from one that never was. Thread rule: the owner's thread. */
#ifndef EPD_BASE_HANDLES_H
#define EPD_BASE_HANDLES_H

#include <stdint.h>

#include "daemon/base/error.h"

/* On the wire: index | generation << 32. generation is never 0, so 0 is never an id. */
struct epd_handle {
    uint32_t index, generation;
};
static inline uint64_t epd_handle_pack(struct epd_handle h)
{
    return (uint64_t)h.generation << 32 | h.index;
}
static inline struct epd_handle epd_handle_unpack(uint64_t id)
{
    return (struct epd_handle){.index = (uint32_t)id, .generation = (uint32_t)(id >> 32)};
}

struct epd_handle_slot;
struct epd_handles {
    struct epd_handle_slot *slots; /* owned */
    uint32_t n_slots, limit, used, first_free;
};

/* At most `limit` objects at once. */
void epd_handles_init(struct epd_handles *table, uint32_t limit);
void epd_handles_fini(struct epd_handles *table); /* the objects stay their owners' */
/* obj is borrowed, not NULL. EPD_ELIMIT, EPD_ENOMEM. */
enum epd_status epd_handles_add(struct epd_handles *table, void *obj, struct epd_handle *out,
                                struct epd_error *err);
/* EPD_ENOENT: no such index was ever given; EPD_ESTALE: it was, and the object is gone. */
enum epd_status epd_handles_get(const struct epd_handles *table, struct epd_handle handle,
                                void **out, struct epd_error *err);
/* The handle must be valid. */
void epd_handles_remove(struct epd_handles *table, struct epd_handle handle);
/* Iterate: *cursor starts at 0; NULL at the end. Removing the returned object is allowed. */
void *epd_handles_next(const struct epd_handles *table, uint32_t *cursor);

#endif
