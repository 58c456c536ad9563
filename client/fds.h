/* The fd socket `<socket>.fd` (SOCK_SEQPACKET): one 16-byte token per connection, answered by one
 * struct epd_fd_reply (proto/engine.h). Thread rule: none, no state. */
#ifndef EPD_CLIENT_FDS_H
#define EPD_CLIENT_FDS_H

#include <stdint.h>

#include "proto/engine.h"
#include "proto/errors.h"

/* A redemption: in: path, token, timeout_ns, expect, send_fd. */
struct epdc_redeem {
    const char *path;     /* borrowed */
    const uint8_t *token; /* borrowed, EPD_TOKEN_BYTES */
    int64_t timeout_ns;   /* of each step */
    uint32_t expect;      /* EPD_FD_REPLY_* */
    int send_fd;          /* borrowed: sent with the token, or -1 */
};

/* Connect, send the token (and send_fd), receive and check the reply.
 *   EPD_FD_REPLY_SESSION: *fd_out is the connection, which is the session.
 *   EPD_FD_REPLY_GRANT:   *fd_out is the fd granted.
 *   EPD_FD_REPLY_IMPORT:  nothing; fd_out may be NULL.
 * The caller owns *fd_out (close-on-exec). Errors: EUNREACHABLE, ETIMEDOUT, EINTERNAL (a reply
 * that is none), ESYS, and whatever status the broker answers. */
enum epd_status epdc_redeem(const struct epdc_redeem *redeem, int *fd_out, struct epd_error *err);

#endif
