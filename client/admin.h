/* What operators ask for (used by epdctl; part of libepd, not of the stable API): one unary control
 * call with packed protobuf messages of proto/control.proto. No session is needed. */
#ifndef EPD_CLIENT_ADMIN_H
#define EPD_CLIENT_ADMIN_H

#include <stddef.h>
#include <stdint.h>

#include "client/epd.h"

struct epd_admin;

/* Connect (lazily) to the daemon at `socket` (NULL: the usual order). Errors: EINVAL (path),
 * EUNSUPPORTED (libepd-rpc.so missing: the message names the paths tried). */
EPD_API enum epd_status epd_admin_open(const char *socket, struct epd_admin **out,
                                       struct epd_error *err);
EPD_API void epd_admin_close(struct epd_admin *admin);
/* The socket path in use. */
EPD_API const char *epd_admin_socket(const struct epd_admin *admin);
/* Blocking unary call of "/epd.v1.Control/<method>" or any full "/pkg.Service/Method" path.
 * *resp_out is malloc'ed; the caller frees it with free(). */
EPD_API enum epd_status epd_admin_call(struct epd_admin *admin, const char *method,
                                       const uint8_t *req, size_t req_len, int64_t timeout_ns,
                                       uint8_t **resp_out, size_t *resp_len_out,
                                       struct epd_error *err);

#endif
