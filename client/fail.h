/* Errors of the control calls: fill a struct epd_error and return its status. The library's own
 * copy (client/ knows proto/ only); any err argument may be NULL. Internal names of the library
 * begin with epdc_, so that libepd.a does not clash with a program's own epd_ names. */
#ifndef EPD_CLIENT_FAIL_H
#define EPD_CLIENT_FAIL_H

#include "proto/errors.h"

/* Set *err and return status. The message is cut to fit. Preserves errno. */
__attribute__((format(printf, 3, 4))) enum epd_status
epdc_fail(struct epd_error *err, enum epd_status status, const char *fmt, ...);

/* As epdc_fail with ": <strerror(errno)>" appended; EPD_ENOMEM for ENOMEM, EPD_ELIMIT for
 * EMFILE and ENFILE, EPD_EPERM for EACCES and EPERM, else EPD_ESYS. Preserves errno. */
__attribute__((format(printf, 2, 3))) enum epd_status epdc_fail_errno(struct epd_error *err,
                                                                      const char *fmt, ...);

#endif
