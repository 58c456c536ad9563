/* One datagram of a SEQPACKET socket, with file descriptors. Thread rule: a socket belongs to one
 * thread at a time. */
#ifndef EPD_IPC_FDPASS_H
#define EPD_IPC_FDPASS_H

#include <stddef.h>

#include "daemon/base/error.h"

#define EPD_FDPASS_MAX 16u

/* Send buf[len] and n_fds descriptors (borrowed) as one datagram. EPD_EAGAIN when the socket is
 * non-blocking and full, EPD_ESESSIONLOST when the peer is gone. */
enum epd_status epd_fd_send(int sock, const void *buf, size_t len, const int *fds, unsigned n_fds,
                            struct epd_error *err);

/* Receive one datagram: *len_out bytes in buf, *n_fds_out descriptors (close-on-exec, owned by the
 * caller) in fds_out[fds_cap]. Truncated data, or more descriptors than fds_cap: everything is
 * closed, EPD_EINVAL. EOF: EPD_ESESSIONLOST. Nothing there on a non-blocking socket: EPD_EAGAIN. */
enum epd_status epd_fd_recv(int sock, void *buf, size_t cap, size_t *len_out, int *fds_out,
                            unsigned fds_cap, unsigned *n_fds_out, struct epd_error *err);

#endif
