/* Frame guard: a relay between a client's socket and gRPC that reads HTTP/2 frame headers and cuts
 * a connection off before its frames cost gRPC 1.51 memory it never gives back (rapid reset, stream
 * floods, oversized frames). Runs on a thread of its own.
 *
 * Limits of a connection: the 24-byte preface within 5 s; at most 1024 streams open (HEADERS of the
 * client minus ends of either side); RST_STREAM of both directions 200/s, burst 500; SETTINGS and
 * PING of the client 100/s, burst 500, and one more for each frame of the server that it may answer
 * so; a client frame of at most 16384 bytes.
 *
 * When gRPC hangs up, its last bytes have 2 s to reach the client. A connection costs 3 descriptors
 * and, unless its reader is slow, no buffer. */
#ifndef EPD_RPC_GUARD_H
#define EPD_RPC_GUARD_H

#include "daemon/base/error.h"

struct epd_guard;

enum epd_status epd_guard_create(struct epd_guard **out, struct epd_error *err);
/* Ends all connections (their last bytes get 200 ms), joins the thread. No epd_guard_add may be in
 * progress or follow. NULL is fine. */
void epd_guard_destroy(struct epd_guard *guard);
/* Relay between *fd (taken over on success, -1 afterwards) and a new socket, *inner_out (owned by
 * the caller). Thread-safe. */
enum epd_status epd_guard_add(struct epd_guard *guard, int *fd, int *inner_out,
                              struct epd_error *err);
/* Connections cut off for breaking a limit, since create. Thread-safe. */
unsigned epd_guard_cut(const struct epd_guard *guard);

#endif
