/* Leases: a session holding a seat. Thread rule: the loop's thread. */
#ifndef EPD_CORE_LEASE_H
#define EPD_CORE_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/fsm.h"
#include "daemon/core/session.h"
#include "proto/layout.h"

extern const struct epd_fsm epd_lease_fsm;

struct epd_lease;
struct epd_join;

struct epd_lease_request {
    uint64_t group;
    uint32_t rank, depth; /* depth 0: default */
    bool takeover;
    const uint8_t *key;
    size_t key_len;
};
#define EPD_LEASE_GRANTS 3u
struct epd_lease_info {
    uint64_t lease;
    uint32_t rank, device, generation;
    uint64_t chunk, ring_offset;
    uint32_t ring_depth;
    struct epd_shape shape;
    uint64_t incarnation;
    struct epd_grant_info grants[EPD_LEASE_GRANTS];
    unsigned n_grants;
};
typedef void (*epd_lease_fn)(void *arg, const struct epd_lease_info *info,
                             const struct epd_error *err);

/* Waits while a change of the group runs or the seat is being reclaimed. Errors: EPD_ENOENT,
 * EPD_ESTALE, EPD_EINVAL, EPD_EPERM, EPD_EBUSY (names the lessee), EPD_EDEVICE, EPD_ELIMIT. */
struct epd_lease_caller {
    epd_alive_fn alive;
    epd_lease_fn fn;
    void *arg;
};
void epd_lease_acquire(struct epd_session *session, const struct epd_lease_request *request,
                       const struct epd_lease_caller *caller);
/* The new generation; waits until the change is over. */
void epd_lease_rearm(struct epd_session *session, uint64_t lease,
                     const struct epd_lease_caller *caller);
/* Answered when the seat is free. */
void epd_lease_release(struct epd_session *session, uint64_t lease, epd_done_fn fn, void *arg);

/* ---- inside core ---- */

/* A lease of this session that is in use. Errors: EPD_ENOENT, EPD_ESTALE. */
enum epd_status epd_lease_get(struct epd_session *session, uint64_t id, struct epd_lease **out,
                              struct epd_error *err);
const char *epd_lease_state_name(const struct epd_lease *lease); /* NULL: "free" */
/* Begin its end; the other seats see `status`. Idempotent. */
void epd_lease_leave(struct epd_lease *lease, enum epd_status status, const char *why);
/* The group is quiet: let the engine forget the seat, then free the lease. */
void epd_lease_clear(struct epd_lease *lease);
/* Tell the engine about a joining lease (once; later again when the engine dies meanwhile). */
void epd_lease_send(struct epd_lease *lease);
/* The group's ops run: send, or begin the change that a takeover needs. */
void epd_lease_join(struct epd_lease *lease);
/* The device has failed: give up a joining lease. */
void epd_lease_abandon(struct epd_lease *lease, const struct epd_error *err);
void epd_lease_unarm(struct epd_lease *lease);
void epd_lease_replay(struct epd_lease *lease, struct epd_join *join);

#endif
