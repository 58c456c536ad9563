/* The first half of epd_open: socket path, transport, Attach with its version handshake, and the
 * session connection. */
#ifndef EPD_CLIENT_ATTACH_H
#define EPD_CLIENT_ATTACH_H

#include "client/epd.h"

/* Fill a zeroed session (fds -1, owner and lock made). On failure the caller closes it. Retries a
 * daemon that is not there when options->wait_daemon is set, at most timeout_ns. Errors: EINVAL
 * (path, name), EUNREACHABLE, EVERSION, EPERM, ELIMIT, EUNSUPPORTED (libepd-rpc.so). */
enum epd_status epdc_attach(struct epd *epd, const struct epd_open_options *options,
                            struct epd_error *err);
/* The socket path of `flag` (may be NULL), EPD_SOCKET or the default rule; malloc'ed. */
enum epd_status epdc_socket_path(const char *flag, char **out, struct epd_error *err);
/* Replace the message of an EUNREACHABLE call by what is wrong with the socket: absent, nobody
 * listening, not permitted (then EPERM). Returns the status. */
enum epd_status epdc_explain_unreachable(const char *socket, struct epd_error *err);

#endif
