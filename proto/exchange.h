/* The exchange chunk: engine-private memory of one group on one device, mapped by every engine that
 * has seats of the group. README.md ("Exchange") says who writes which record when. This file is
 * the layout: one list of areas, used for the size and for every address.
 *
 * Every 8-byte word has one writer and is accessed with acquire/release atomics. Records of several
 * words end with their key; seqlock discipline: key 0, payload, key. */
#ifndef EPD_PROTO_EXCHANGE_H
#define EPD_PROTO_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/layout.h"

#define EPD_EPOCH_SLOTS 4u

/* Written by the source's engine when a dispatch or a combine is submitted. 64 bytes. */
struct epd_xheader {
    uint64_t tag_hash; /* tag << 32 | shape hash */
    uint64_t order;    /* dispatch: combines submitted before; combine: dispatches before */
    uint64_t chunk;    /* combine: of the rows */
    uint64_t offset;   /* combine: of the first row of the set */
    uint64_t stride;   /* combine: bytes from row to row */
    uint64_t reserved[2];
    uint64_t key; /* count = b */
};

/* One array of a receive credit. */
struct epd_xarray {
    uint64_t chunk; /* 0: not wanted */
    uint64_t offset;
};

/* Written by the destination's engine: rows of this epoch may come. 128 bytes. */
struct epd_xcredit {
    struct epd_xarray recv, src, ids, weights;
    uint64_t stride; /* of recv rows, bytes */
    uint64_t rows;   /* capacity, for the check before each write */
    uint64_t reserved[5];
    uint64_t key;
};

#ifndef __cplusplus
_Static_assert(sizeof(struct epd_xheader) == 64, "one cache line");
_Static_assert(sizeof(struct epd_xcredit) == 128, "two cache lines");
#endif

/* Count words a source publishes in one epoch: rows for each expert (expert-major) or for each
 * destination rank (rank-major). */
EPD_HD uint32_t epd_exchange_counts(const struct epd_shape *s)
{
    return s->layout == EPD_LAYOUT_EXPERT_MAJOR ? s->experts : s->ranks;
}

/* Byte offsets of the areas; R and C (count words) from the shape. */
struct epd_exchange_map {
    uint64_t dispatch; /* struct epd_xheader [slots][R] */
    uint64_t combine;  /* struct epd_xheader [slots][R] */
    uint64_t credit;   /* struct epd_xcredit [slots][R] */
    uint64_t counts;   /* uint64_t [slots][R][C] */
    uint64_t done;     /* uint64_t [slots][R dst][R src] */
    uint64_t released; /* uint64_t [slots][R dst][R src] */
    uint64_t bytes;    /* of the chunk, multiple of 4096 */
};

EPD_HD struct epd_exchange_map epd_exchange_layout(const struct epd_shape *s)
{
    const uint64_t slots = EPD_EPOCH_SLOTS, r = s->ranks;
    struct epd_exchange_map m;
    uint64_t at = 0;
    m.dispatch = at, at += slots * r * sizeof(struct epd_xheader);
    m.combine = at, at += slots * r * sizeof(struct epd_xheader);
    m.credit = at, at += slots * r * sizeof(struct epd_xcredit);
    m.counts = at, at += (slots * r * epd_exchange_counts(s) * 8u + 63u) & ~(uint64_t)63u;
    m.done = at, at += (slots * r * r * 8u + 63u) & ~(uint64_t)63u;
    m.released = at, at += (slots * r * r * 8u + 63u) & ~(uint64_t)63u;
    m.bytes = (at + 4095u) & ~(uint64_t)4095u;
    return m;
}

EPD_HD uint64_t epd_exchange_bytes(const struct epd_shape *s)
{
    return epd_exchange_layout(s).bytes;
}

EPD_HD uint64_t epd_exchange_slot(uint64_t epoch)
{
    return epoch % EPD_EPOCH_SLOTS;
}

#endif
