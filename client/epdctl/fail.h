/* Error texts of epdctl's own modules. */
#ifndef EPDCTL_FAIL_H
#define EPDCTL_FAIL_H

#include "proto/errors.h"

/* Set *err (may be NULL), return status. */
__attribute__((format(printf, 3, 4))) enum epd_status
ctl_fail(struct epd_error *err, enum epd_status status, const char *fmt, ...);

#endif
