/* Errors as values (control path). A function that can fail takes `struct epd_error *err` as its
 * last parameter and returns enum epd_status; it writes err only on failure. The place that
 * detects an error writes the message (field, value, remedy); the place that handles it logs it.
 * Any err argument may be NULL. Thread rule: none, the struct belongs to the caller. */
#ifndef EPD_BASE_ERROR_H
#define EPD_BASE_ERROR_H

#include <stdarg.h>

#include "proto/errors.h"

/* Set *err (if not NULL). The message is truncated to fit. */
__attribute__((format(printf, 3, 4))) void
epd_error_set(struct epd_error *err, enum epd_status status, const char *fmt, ...);
/* Set *err (if not NULL) and return status (evaluated twice). A macro, so that the compiler and the
 * analyzer see that what comes back is `status`. */
#define epd_fail(err, status, ...)                                                                 \
    (epd_error_set((err), (status), __VA_ARGS__), (enum epd_status)(status))

/* As epd_fail, with status EPD_ESYS (EPD_ENOMEM for ENOMEM, EPD_ELIMIT for EMFILE/ENFILE) and
 * ": <strerror(errno)>" appended. Preserves errno. */
__attribute__((format(printf, 2, 3))) enum epd_status epd_fail_errno(struct epd_error *err,
                                                                     const char *fmt, ...);

/* Put "<prefix>: " in front of err's message (truncating at the end). Returns err's status. */
__attribute__((format(printf, 2, 3))) enum epd_status epd_fail_prefix(struct epd_error *err,
                                                                      const char *fmt, ...);

/* Static strings, never NULL; unknown codes give "unknown status". */
const char *epd_status_name(enum epd_status status); /* "EINVAL" */
const char *epd_status_text(enum epd_status status); /* "invalid argument" */
int epd_status_grpc(enum epd_status status);         /* gRPC status code */
enum epd_scope epd_status_scope(enum epd_status status);

#endif
