/* Validation of an op descriptor against the group's shape: which arrays an op of this kind and
 * layout has, how large, how aligned, and who may own them. Pure arithmetic, safe against overflow;
 * no thread rule. */
#ifndef EPD_CORE_OPDESC_H
#define EPD_CORE_OPDESC_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/engine.h"

#define EPD_OPDESC_SETS_MAX 4096u

/* One array as asked for, with what is known of its buffer. */
struct epd_opdesc_array {
    bool present;
    uint64_t chunk, base, size; /* of the buffer: its chunk, its offset there, its bytes */
    unsigned device;            /* of the buffer */
    bool import;
    uint64_t offset, bytes, stride; /* in the buffer; bytes 0: to its end; stride 0: dense */
};

struct epd_opdesc {
    uint32_t kind, ids_type, sets;
    unsigned device; /* of the seat */
    struct epd_opdesc_array array[EPD_ARRAY_ROLES];
};

/* Fills refs_out[] (absent arrays: all 0; strides never 0). Errors: EPD_EINVAL naming array, value
 * and rule. */
enum epd_status epd_opdesc_check(const struct epd_shape *shape, const struct epd_opdesc *desc,
                                 struct epd_array_ref refs_out[EPD_ARRAY_ROLES],
                                 struct epd_error *err);

#endif
