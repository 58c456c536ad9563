/* Bodies of the public handles, shared by the files of this folder. Layering inside the folder:
 *   fail, fork, status, result         know nothing
 *   fds, maps, rpc_load, call          mechanisms of a session
 *   session                            epd_open, epd_close, grants
 *   group, lease, buffer, op           one object each, control calls
 *   data, wait                         the data path: touches a lease and its mappings only
 * Lock: `lock` guards the lists, the maps and every control call from its RPC to the last grant of
 * its reply (a grant is given once for a session, so a second caller must find it redeemed).
 * Data-path fields of a lease belong to the lease's thread. */
#ifndef EPD_CLIENT_INTERNAL_H
#define EPD_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#include "client/call.h"
#include "client/epd.h"
#include "client/fork.h"
#include "client/maps.h"
#include "proto/control.pb-c.h"
#include "proto/engine.h"
#include "proto/layout.h"
#include "proto/ring.h"

#define EPDC_KEY_BYTES 16u
#define EPDC_TIMEOUT_NS 5000000000ll /* of a control call, by default */

struct epd {
    struct epdc_owner owner;
    struct epdc_transport transport; /* owned: its channel */
    char *socket;                    /* owned */
    char fd_socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint64_t id;
    uint8_t key[EPDC_KEY_BYTES];
    int session_fd; /* owned; -1 before Attach is complete */
    int daemon_fd;  /* owned: pidfd of the daemon, or -1 where it cannot be had */
    uint64_t spin_ns;
    int32_t lost; /* enum epd_status, 0 while alive; atomic, any thread, set once */

    pthread_mutex_t lock;
    struct epdc_maps maps;
    struct epd_lease *leases;   /* owned list */
    struct epd_buffer *buffers; /* owned list */
};

struct epd_lease {
    /* data path */
    void *area; /* of the ring, in `ring` */
    const struct epd_status_page *page;
    int bell; /* borrowed from `doorbell` */
    uint32_t depth;
    uint64_t submitted, consumed; /* tickets given; completions read */
    uint64_t next_epoch;
    uint64_t rollback_ticket; /* completions of older tickets do not move next_epoch */
    uint64_t rearm_ticket;    /* completions of older tickets belong to an older generation */
    uint32_t generation;
    enum epd_status broken; /* why submissions are refused until epd_rearm; EPD_OK: they are not */
    uint64_t checked_ns;    /* when the daemon was last looked at (wait.c) */
    uint64_t dead_ns;       /* since when the engine is down; 0: it is not */
    struct epdc_owner owner;
    struct epd_shape shape;
    /* control */
    struct epd *epd; /* borrowed */
    uint64_t id;
    uint32_t rank, device;
    struct epdc_map *ring, *status, *doorbell; /* references */
    struct epd_op *ops;                        /* owned list */
    struct epd_lease *next;
};

struct epd_buffer {
    struct epd *epd; /* borrowed */
    uint64_t id;
    void *ptr;
    uint64_t bytes;
    uint32_t device;
    uint32_t ops;           /* bound to it */
    struct epdc_map *chunk; /* reference; NULL: imported, mapped by itself */
    struct epd_buffer *next;
};

struct epd_op {
    struct epd_lease *lease; /* borrowed */
    uint32_t kind;           /* enum epd_op_kind */
    uint32_t desc_index, desc_generation;
    uint32_t sets;
    bool has_control;
    uint64_t tickets_end; /* last ticket submitted with it + 1; 0: never */
    struct epd_buffer *buffers[EPD_ARRAY_ROLES];
    struct epd_op *next;
};

/* ---- session.c ---- */

/* EPD_EFORKED, the reason why the session is over, or EPD_OK; err filled. */
enum epd_status epdc_session_usable(const struct epd *epd, struct epd_error *err);
/* Fill the Session submessage of a request; it borrows from epd. */
void epdc_session_message(struct epd *epd, Epd__V1__Session *out);
/* Redeem all grants of a reply into epd->maps. Lock held. */
enum epd_status epdc_session_redeem(struct epd *epd, Epd__V1__FdGrant **grants, size_t n,
                                    struct epd_error *err);
/* One unary call of this session; timeouts and errors as epdc_call. Lock held. */
enum epd_status epdc_session_call(struct epd *epd, const struct epdc_method *method,
                                  const ProtobufCMessage *req, ProtobufCMessage **reply_out,
                                  struct epd_error *err);
/* EPD_OK, EPD_EDAEMONLOST or EPD_ESESSIONLOST from the session connection; remembers a loss. One
 * or two system calls; any thread, no lock. */
enum epd_status epdc_session_probe(struct epd *epd);
static inline enum epd_status epdc_session_lost(const struct epd *epd)
{
    return (enum epd_status)__atomic_load_n(&epd->lost, __ATOMIC_RELAXED);
}
/* Remember why the session is over; the first reason stays. Returns the reason that stays. */
enum epd_status epdc_session_lose(struct epd *epd, enum epd_status why);

/* ---- lease.c, buffer.c, op.c ---- */

/* Free without telling the daemon (which ends everything with the session). forked: memory only.
 * The caller has taken the object off its list, or drops the list. Lock held unless forked. */
void epdc_lease_destroy(struct epd_lease *lease, bool forked);
void epdc_buffer_destroy(struct epd_buffer *buffer, bool forked);
void epdc_op_destroy(struct epd_op *op, bool forked);

/* ---- data.c ---- */

/* Completion of `ticket` is there: 1; not yet: 0; the ring is damaged: -1. */
int epdc_ring_posted(const struct epd_lease *lease, uint64_t ticket);
/* Read the completion of ticket `consumed`, which is there, and advance the lease by it. */
void epdc_ring_consume(struct epd_lease *lease, struct epd_result *out);
/* Write the doorbell whether or not the engine sleeps. */
void epdc_ring_bell(const struct epd_lease *lease);
/* Start again in `generation`: epoch 0, tickets and completions go on. Nothing changes when it is
 * the generation that the lease is in, except that submissions are taken again. */
void epdc_ring_rearm(struct epd_lease *lease, uint32_t generation);

#endif
