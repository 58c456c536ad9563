#include "tests/support/rng.h"

#include <string.h>

void rng_fill(uint64_t seed, void *buf, size_t n)
{
    unsigned char *p = buf;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = rng_mix(seed ^ i);
        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
}

uint64_t rng_digest(const void *buf, size_t n)
{
    const unsigned char *p = buf;
    uint64_t h = 0x243f6a8885a308d3ull ^ n;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = 0;
        memcpy(&v, p + i, n - i < 8 ? n - i : 8);
        h = rng_mix(h ^ v);
    }
    return h;
}
