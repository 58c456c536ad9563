/* First-fit allocator of ranges inside one chunk. Knows numbers only, never touches the memory.
 * Free ranges are an ordered list of holes; neighbours are merged. Thread rule: the owner's. */
#ifndef EPD_CORE_ALLOC_H
#define EPD_CORE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

#define EPD_ALLOC_ALIGN 4096u

struct epd_alloc;

/* All of [0, bytes) is free; bytes is a multiple of EPD_ALLOC_ALIGN. Errors: EPD_ENOMEM. */
enum epd_status epd_alloc_create(uint64_t bytes, struct epd_alloc **out, struct epd_error *err);
void epd_alloc_destroy(struct epd_alloc *alloc); /* NULL is fine */

/* The lowest free range of `bytes` rounded up to EPD_ALLOC_ALIGN. False when none is large enough
 * or bytes is 0 or overflows. */
bool epd_alloc_take(struct epd_alloc *alloc, uint64_t bytes, uint64_t *offset_out);
/* Give back what epd_alloc_take returned, with the same size. */
void epd_alloc_give(struct epd_alloc *alloc, uint64_t offset, uint64_t bytes);
/* Bytes in use. */
uint64_t epd_alloc_used(const struct epd_alloc *alloc);

#endif
