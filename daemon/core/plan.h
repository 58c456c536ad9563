/* What a group costs, term by term. Pure arithmetic; no thread rule. */
#ifndef EPD_CORE_PLAN_H
#define EPD_CORE_PLAN_H

#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/layout.h"

struct epd_plan_term {
    const char *name, *formula; /* static */
    uint64_t bytes;             /* of one seat */
};
#define EPD_PLAN_TERMS 6u
struct epd_plan {
    struct epd_plan_term term[EPD_PLAN_TERMS];
    uint64_t seat_bytes;   /* sum, rounded up to chunks */
    uint64_t group_bytes;  /* all seats */
    uint64_t engine_bytes; /* engine-private exchange area, a device */
};

/* Errors: EPD_EINVAL naming the field of the shape. */
enum epd_status epd_plan_group(const struct epd_shape *shape, struct epd_plan *out,
                               struct epd_error *err);

#endif
