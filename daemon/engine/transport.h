/* What a backend provides: memory of chunks, and the bodies of the tasks. Every slot is filled; an
 * operation that a backend does not have is an explicit function that says so. Called from the
 * scheduler (memory) and from any worker thread (task bodies: no lock, no allocation, no system
 * call, no waiting). */
#ifndef EPD_ENGINE_TRANSPORT_H
#define EPD_ENGINE_TRANSPORT_H

#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/layout.h"

/* One row to copy in a dispatch. */
struct epd_row_copy {
    void *dst;
    const void *src;
};

/* One token to combine: out = round(sum). n terms in ascending order. rows[i] points to a row of
 * the shape's dtype; weights NULL (rank-major): acc += row; else acc = fmaf(weights[i], row, acc).
 * acc starts +0.0f; one rounding to nearest even; NaN results are 0x7fff / 0x7fffffff; n = 0 gives
 * a +0 row. Denormals kept. */
struct epd_token_sum {
    void *out;
    const void *const *rows;
    const float *weights;
    uint32_t n;
};

struct epd_transport_ops {
    const char *name; /* "host", "cuda" */
    /* Zeroed memory of `bytes`, mapped read-write at *base_out, exportable as *fd_out (owned). */
    enum epd_status (*chunk_create)(uint64_t bytes, void **base_out, int *fd_out,
                                    struct epd_error *err);
    /* Map an exported chunk (fd borrowed). import = true: foreign memory, check everything. */
    enum epd_status (*chunk_map)(int fd, uint64_t bytes, int import, void **base_out,
                                 struct epd_error *err);
    void (*chunk_unmap)(void *base, uint64_t bytes);
    /* Copy n rows of row_bytes each (multiple of 16). Rows never overlap. */
    void (*copy_rows)(const struct epd_row_copy *rows, uint32_t n, uint32_t row_bytes);
    /* Sum one token of `hidden` elements of `dtype`. */
    void (*sum_token)(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype);
};

extern const struct epd_transport_ops epd_transport_host;

#endif
