/* One-shot tokens for the fd socket: 16 random bytes bound to the uid and pid of the RPC's caller,
 * valid for EPD_GRANT_TTL_MS. Thread rule: the loop's thread. */
#ifndef EPD_CORE_GRANT_H
#define EPD_CORE_GRANT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/error.h"
#include "daemon/ipc/peer.h"
#include "proto/engine.h"

#define EPD_GRANT_TTL_MS 10000u
#define EPD_GRANTS_PER_UID 1024u

enum epd_grant_kind {
    EPD_GRANT_SESSION,  /* the connection becomes the session `session` */
    EPD_GRANT_CHUNK,    /* id: chunk */
    EPD_GRANT_STATUS,   /* id: device */
    EPD_GRANT_DOORBELL, /* id: device */
    EPD_GRANT_IMPORT,   /* a memfd is expected; then it waits for the second call */
};

struct epd_grant {
    uint8_t token[EPD_TOKEN_BYTES];
    enum epd_grant_kind kind;
    struct epd_peer peer; /* who may use it */
    uint64_t session;
    uint64_t id;
    uint64_t incarnation; /* STATUS */
    int fd;               /* owned; to hand out, or (IMPORT) received */
    uint32_t device;      /* IMPORT */
    uint64_t bytes;       /* IMPORT */
    uint64_t expires_ns;
    struct epd_grant *next;
};

struct epd_grants;
struct epd_grants *epd_grants_create(uv_loop_t *loop, uint64_t *expired_counter);
void epd_grants_destroy(struct epd_grants *grants);

/* Keep a copy of *grant under a new token; grant->fd (or -1) is borrowed and duplicated. */
enum epd_status epd_grants_issue(struct epd_grants *grants, const struct epd_grant *grant,
                                 uint8_t token_out[EPD_TOKEN_BYTES], struct epd_error *err);
/* The grant of a token of this peer, in constant time for each grant kept; NULL: none. */
struct epd_grant *epd_grants_find(struct epd_grants *grants, const uint8_t token[EPD_TOKEN_BYTES],
                                  const struct epd_peer *peer);
/* Closes its descriptor. */
void epd_grants_remove(struct epd_grants *grants, struct epd_grant *grant);
void epd_grants_remove_session(struct epd_grants *grants, uint64_t session);

/* No timing difference tells how many bytes agree. */
bool epd_bytes_equal(const void *a, const void *b, size_t n);

#endif
