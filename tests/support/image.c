#include "tests/support/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/rng.h"
#include "tests/support/workload.h"

size_t image_add(struct image *image, const char *name, size_t bytes, size_t align)
{
    check_true(image->regions < IMAGE_REGIONS, "image: too many regions");
    /* An odd multiple of `align`, so that nothing relies on more than what is promised. */
    size_t at = image->used + IMAGE_GUARD;
    at = (at + 2 * align - 1) / (2 * align) * (2 * align) + align;
    image->region[image->regions++] = (struct image_region){name, at, bytes};
    image->used = at + bytes;
    return at;
}

size_t image_bytes(const struct image *image)
{
    return (image->used + IMAGE_GUARD + 4095u) / 4096u * 4096u;
}

void image_init(struct image *image, void *mem, uint64_t seed)
{
    image->bytes = image_bytes(image);
    image->mem = mem;
    image->shadow = need_memory(image->bytes);
    rng_fill(seed, image->shadow, image->bytes);
    memcpy(image->mem, image->shadow, image->bytes);
}

void image_fini(struct image *image)
{
    free(image->shadow);
    *image = (struct image){0};
}

void image_write(struct image *image, size_t offset, const void *data, size_t n)
{
    if (n == 0)
        return;
    memcpy(image->mem + offset, data, n);
    memcpy(image->shadow + offset, data, n);
}

void image_expect(struct image *image, size_t offset, const void *data, size_t n)
{
    if (n != 0)
        memcpy(image->shadow + offset, data, n);
}

static void describe(const struct image *image, size_t at, char *where, size_t len)
{
    const char *name = "guard";
    size_t base = 0, end = 0;
    for (uint32_t i = 0; i < image->regions; i++) {
        const struct image_region *r = &image->region[i];
        if (at >= r->offset && at < r->offset + r->bytes)
            name = r->name, base = r->offset, end = r->bytes;
    }
    (void)snprintf(where, len, "%s: byte %zu of %zu is %02x, expected %02x", name, at - base,
                   end ? end : image->bytes, image->mem[at], image->shadow[at]);
}

bool image_same(const struct image *image, size_t offset, size_t n, char *where, size_t len)
{
    if (n == 0 || memcmp(image->mem + offset, image->shadow + offset, n) == 0)
        return true;
    for (size_t i = offset; i < offset + n; i++)
        if (image->mem[i] != image->shadow[i]) {
            describe(image, i, where, len);
            return false;
        }
    return true;
}
