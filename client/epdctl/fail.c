#include "client/epdctl/fail.h"

#include <stdarg.h>
#include <stdio.h>

void ctl_error_set(struct epd_error *err, enum epd_status status, const char *fmt, ...)
{
    if (err == NULL)
        return;
    va_list args;
    err->status = status;
    va_start(args, fmt);
    (void)vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
}
