/* Sessions: one client process each. Attach gives a key and a token; the token turns a connection
 * on the fd socket into the session, whose end is EOF there or the death of the process, whichever
 * is seen first. Thread rule: the loop's thread. */
#ifndef EPD_CORE_SESSION_H
#define EPD_CORE_SESSION_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/fsm.h"
#include "proto/engine.h"

extern const struct epd_fsm epd_session_fsm;

struct epd_session;
struct epd_grant;

struct epd_attach_request {
    struct epd_peer peer;
    const char *name, *version; /* valid UTF-8; at most 63 bytes each */
};
struct epd_attach_info {
    uint64_t session;
    uint8_t key[16];
    uint8_t token[EPD_TOKEN_BYTES];
    const char *fd_socket; /* borrowed */
    unsigned devices;
};
typedef void (*epd_attach_fn)(void *arg, const struct epd_attach_info *info,
                              const struct epd_error *err);
/* Answered when the devices have started. Errors: EPD_EDRAINING, EPD_ELIMIT, EPD_EINVAL. */
void epd_session_attach(struct epd_core *core, const struct epd_attach_request *request,
                        epd_attach_fn fn, void *arg);

/* The session of a call: id, key (constant time) and uid must agree; a connected one only.
 * Errors: EPD_ESESSIONLOST, EPD_EPERM. */
struct epd_session_proof {
    uint64_t id;
    const uint8_t *key; /* may be NULL */
    size_t key_len;
    uid_t uid;
};
enum epd_status epd_session_check(struct epd_core *core, const struct epd_session_proof *proof,
                                  struct epd_session **out, struct epd_error *err);
/* End it in order. */
void epd_session_detach(struct epd_session *session);
uint64_t epd_session_id(const struct epd_session *session);

/* ---- inside core ---- */

/* NULL when it is not there any more. */
struct epd_session *epd_session_by_id(struct epd_core *core, uint64_t id);
/* The connection of its token; takes over fd. */
void epd_session_connect(struct epd_session *session, int fd);
/* The client has fetched a descriptor. */
void epd_session_granted(struct epd_core *core, const struct epd_grant *grant);
/* End it; `why` is logged. Idempotent. */
void epd_session_end(struct epd_session *session, const char *why);
/* Something that kept an ending session alive is gone: look whether all is. */
void epd_session_settle(struct epd_session *session);
/* EPD_ELIMIT when its user would hold more than max_bytes_per_uid. */
enum epd_status epd_session_may_hold(const struct epd_session *session, uint64_t bytes,
                                     struct epd_error *err);
/* The doorbell of the session on a device, made at first use. */
enum epd_status epd_session_doorbell(struct epd_session *session, unsigned device, int *fd_out,
                                     struct epd_error *err);

/* A descriptor for the client to fetch. */
struct epd_grant_info {
    uint8_t token[EPD_TOKEN_BYTES];
    const char *kind; /* chunk | status | doorbell */
    uint64_t id, bytes;
};
struct epd_chunk;
/* Appends to infos[*n] what the session does not hold yet. Errors: EPD_ELIMIT, EPD_EDEVICE. */
enum epd_status epd_session_grant_chunk(struct epd_session *session, const struct epd_chunk *chunk,
                                        struct epd_grant_info *infos, unsigned *n,
                                        struct epd_error *err);
enum epd_status epd_session_grant_device(struct epd_session *session, unsigned device,
                                         struct epd_grant_info *infos, unsigned *n,
                                         struct epd_error *err);

#endif
