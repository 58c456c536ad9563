/* A buffer under watch. Arrays are placed with guard bytes around each; everything starts as a
 * pattern; a shadow copy says what every byte of the buffer must be. A test writes what it expects
 * into the shadow (image_expect) and compares: defined bytes, rows past the counts, padding and
 * guards are all covered by one comparison. */
#ifndef EPD_TESTS_IMAGE_H
#define EPD_TESTS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_GUARD 192u
#define IMAGE_REGIONS 12u

struct image_region {
    const char *name;
    size_t offset, bytes;
};

struct image {
    uint8_t *mem;    /* borrowed: the buffer */
    uint8_t *shadow; /* owned */
    size_t bytes;
    size_t used; /* while planning */
    struct image_region region[IMAGE_REGIONS];
    uint32_t regions;
};

/* Plan: returns the offset of a new array of `bytes`, at `align` (power of two) but not at more. */
size_t image_add(struct image *image, const char *name, size_t bytes, size_t align);
/* Bytes of buffer that the plan needs. */
size_t image_bytes(const struct image *image);
/* Take the buffer, fill it with a pattern of `seed`, make the shadow. */
void image_init(struct image *image, void *mem, uint64_t seed);
void image_fini(struct image *image);

/* Write memory and shadow: inputs. */
void image_write(struct image *image, size_t offset, const void *data, size_t n);
/* Write the shadow alone: what the other side must have written. */
void image_expect(struct image *image, size_t offset, const void *data, size_t n);
/* true when [offset, offset + n) is as the shadow says; else *where names the array, the byte and
 * both values. */
bool image_same(const struct image *image, size_t offset, size_t n, char *where, size_t len);
static inline bool image_same_all(const struct image *image, char *where, size_t len)
{
    return image_same(image, 0, image->bytes, where, len);
}

#endif
