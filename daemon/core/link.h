/* The supervisor's end of the socketpair to one engine: requests with replies matched by sequence
 * number, reports, never blocking. Thread rule: the loop's thread. */
#ifndef EPD_CORE_LINK_H
#define EPD_CORE_LINK_H

#include <uv.h>

#include "daemon/base/error.h"
#include "proto/engine.h"

struct epd_link;

/* The answer to one request. `msg` is NULL when the link was lost; err is NULL when all is well.
 * A callee that keeps a descriptor puts -1 in its place; the others are closed. */
struct epd_link_reply {
    const struct epd_error *err;
    const struct epd_msg_reply *msg;
    int *fds;
    unsigned n_fds;
};
typedef void (*epd_link_fn)(void *arg, const struct epd_link_reply *reply);

struct epd_link_events {
    void (*report)(void *arg, const struct epd_msg_epoch *msg);
    /* The other side is gone or broke the protocol; the link is dead but not closed: pending
     * requests wait for epd_link_close. Called once. */
    void (*lost)(void *arg, const char *why);
    void *arg;
};

/* Takes over fd (non-blocking SEQPACKET), also on failure. */
enum epd_status epd_link_open(uv_loop_t *loop, int fd, const struct epd_link_events *events,
                              struct epd_link **out, struct epd_error *err);
/* Fails every pending request with EPD_EDEVICE, in order, then frees (in the loop). NULL is fine.
 */
void epd_link_close(struct epd_link *link);

/* A request: h.bytes is set by the caller, h.seq here. Descriptors are borrowed. fn may be NULL (an
 * error reply is logged) and is called exactly once, never from inside this call. On a dead link
 * the request stays pending until epd_link_close. */
void epd_link_request(struct epd_link *link, struct epd_msg_header *msg, const int *fds,
                      unsigned n_fds, epd_link_fn fn, void *arg);

#endif
