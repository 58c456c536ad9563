#include "client/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum epd_status epdc_fail(struct epd_error *err, enum epd_status status, const char *fmt, ...)
{
    if (!err)
        return status;

    int saved = errno;
    va_list args;
    va_start(args, fmt);
    err->status = status;
    (void)vsnprintf(err->message, sizeof(err->message), fmt, args); /* cut is fine */
    va_end(args);
    errno = saved;
    return status;
}

static enum epd_status status_of_errno(int code)
{
    switch (code) {
    case ENOMEM:
        return EPD_ENOMEM;
    case EMFILE:
    case ENFILE:
        return EPD_ELIMIT;
    case EACCES:
    case EPERM:
        return EPD_EPERM;
    default:
        return EPD_ESYS;
    }
}

enum epd_status epdc_fail_errno(struct epd_error *err, const char *fmt, ...)
{
    int saved = errno;
    enum epd_status status = status_of_errno(saved);
    if (!err)
        return status;

    va_list args;
    va_start(args, fmt);
    err->status = status;
    int n = vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof(err->message)) {
        char text[96];
        (void)snprintf(err->message + n, sizeof(err->message) - (size_t)n, ": %s",
                       strerror_r(saved, text, sizeof(text)));
    }
    errno = saved;
    return status;
}
