/* Deterministic pseudo-random numbers: the same seed gives the same sequence on every machine.
 * `rng_hash` is stateless: a value for a set of coordinates. */
#ifndef EPD_TESTS_RNG_H
#define EPD_TESTS_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static inline uint64_t rng_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    return rng_mix(rng_mix(rng_mix(rng_mix(seed) ^ a) ^ b) ^ c);
}
static inline struct rng rng_make(uint64_t seed, uint64_t a, uint64_t b)
{
    return (struct rng){.state = rng_hash(seed, a, b, 0)};
}
static inline uint64_t rng_next(struct rng *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    return rng_mix(r->state);
}
/* 0 <= result < n; n > 0. */
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}
/* 0 <= result < 1. */
static inline float rng_unit(struct rng *r)
{
    return (float)(rng_next(r) >> 40) / 16777216.0f;
}
/* `n` bytes that depend on (seed, position in the buffer). */
void rng_fill(uint64_t seed, void *buf, size_t n);
/* A digest of `n` bytes. */
uint64_t rng_digest(const void *buf, size_t n);

#endif
