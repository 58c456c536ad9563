/* Error texts of epdctl's own modules. */
#ifndef EPDCTL_FAIL_H
#define EPDCTL_FAIL_H

#include "proto/errors.h"

/* Set *err (may be NULL). */
__attribute__((format(printf, 3, 4))) void
ctl_error_set(struct epd_error *err, enum epd_status status, const char *fmt, ...);
/* Set *err (may be NULL), return status (evaluated twice); a macro for the analyzer's sake. */
#define ctl_fail(err, status, ...)                                                                 \
    (ctl_error_set((err), (status), __VA_ARGS__), (enum epd_status)(status))

#endif
