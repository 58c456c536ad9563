/* Bodies of the objects that several files of this folder share. */
#ifndef EPD_CORE_INTERNAL_H
#define EPD_CORE_INTERNAL_H

#include <sys/types.h>

#include "daemon/base/handles.h"
#include "daemon/core/alloc.h"
#include "daemon/core/core.h"
#include "daemon/core/device.h"
#include "daemon/core/events.h"
#include "daemon/core/fsm.h"
#include "daemon/core/waiters.h"
#include "proto/engine.h"

#define EPD_KEY_BYTES 16u
#define EPD_NAME_BYTES 64u /* with the final 0 */

/* Counters of status, by name and help. */
#define EPD_COUNTER_MAP(X)                                                                         \
    X(sessions, "sessions opened")                                                                 \
    X(sessions_lost, "sessions ended by the death of the client")                                  \
    X(groups, "groups created")                                                                    \
    X(leases, "seats leased")                                                                      \
    X(takeovers, "seats taken over")                                                               \
    X(generation_changes, "generation changes")                                                    \
    X(failed_epochs, "epochs failed")                                                              \
    X(engine_restarts, "engine deaths")                                                            \
    X(revoke_kills, "engines killed because they did not stop writing in time")                    \
    X(grants, "descriptors granted")                                                               \
    X(grants_expired, "descriptors not fetched in time")                                           \
    X(refused, "calls refused for want of permission")                                             \
    X(limited, "calls refused by a limit")
struct epd_counters {
#define EPD_COUNTER_FIELD(name, help) uint64_t name;
    EPD_COUNTER_MAP(EPD_COUNTER_FIELD)
#undef EPD_COUNTER_FIELD
};

struct epd_core {
    struct epd_core_options options;
    const struct epd_config *config; /* borrowed */
    uv_loop_t *loop;                 /* borrowed */
    uint64_t started_ns;
    char fd_socket[108];
    struct epd_device *device[EPD_MAX_DEVICES]; /* owned */
    unsigned n_devices;
    struct epd_handles sessions, groups, leases, buffers;
    struct epd_chunk *chunks; /* owned list */
    uint64_t last_chunk;
    struct epd_grants *grants; /* owned */
    struct epd_broker *broker; /* owned; NULL before listen */
    struct epd_events *events; /* owned */
    struct epd_counters counters;
    struct epd_waiters start_waiters; /* Attach before the devices have started */
    uv_timer_t start_timer;
    bool start_over, draining, stopping;
    unsigned jobs; /* on the thread pool */
    void (*stopped)(void *arg);
    void *stopped_arg;
};

/* ---- chunk ---- */

struct epd_chunk {
    uint64_t id, bytes;
    enum epd_chunk_kind kind;
    unsigned device;
    int fd;                          /* owned; -1 while it is created */
    struct epd_session *session;     /* borrowed; NULL: exchange */
    struct epd_group *group;         /* borrowed; NULL: session chunk */
    struct epd_alloc *alloc;         /* owned; rings and buffers */
    bool ready;                      /* all engines that need it have it */
    bool held;                       /* the session has fetched the descriptor */
    uint64_t known[EPD_MAX_DEVICES]; /* incarnation of the engine that maps it, 0: none */
    struct epd_chunk *next;
};

/* ---- session ---- */

enum epd_session_state {
    EPD_SESSION_ATTACHED, /* its token waits to be used */
    EPD_SESSION_ACTIVE,   /* connected */
    EPD_SESSION_ENDING,   /* lost or closed: leases and memory are being taken back */
    EPD_SESSION_GONE,
};

struct epd_session {
    struct epd_core *core;
    struct epd_handle handle;
    uint64_t id;
    uint8_t key[EPD_KEY_BYTES];
    char name[EPD_NAME_BYTES], version[EPD_NAME_BYTES];
    struct epd_peer peer;
    enum epd_session_state state;
    uint64_t created_ns;
    int conn, pidfd; /* owned */
    uv_poll_t conn_poll, pid_poll;
    uv_timer_t timer; /* of the token */
    unsigned handles; /* open uv handles in here */
    uint64_t bytes;   /* of its chunks */
    unsigned n_leases, n_buffers;
    unsigned pending;                      /* requests in flight that point here */
    int doorbell[EPD_MAX_DEVICES];         /* owned; -1: none yet */
    bool doorbell_held[EPD_MAX_DEVICES];   /* the client has fetched it */
    uint64_t status_held[EPD_MAX_DEVICES]; /* incarnation whose page the client has fetched */
    struct epd_lease *leases;              /* owned list */
};

/* ---- group ---- */

struct epd_cause {
    enum epd_status status;
    int rank, other_rank; /* -1: none */
};

enum epd_group_state {
    EPD_GROUP_CREATING, /* exchange chunks are made, engines learn of it */
    EPD_GROUP_ARMED,    /* ops run */
    EPD_GROUP_REARM,    /* ops run; a lessee has not asked for the new generation yet */
    EPD_GROUP_REVOKING, /* REVOKE is sent; no engine may complete anything yet */
    EPD_GROUP_CHANGING, /* GENERATION is sent to the engines that run */
    EPD_GROUP_WAITING,  /* all running engines have the generation; one is down */
    EPD_GROUP_ARMING,   /* seats are cleared and set, ARM is sent */
    EPD_GROUP_DROPPING, /* engines forget it */
    EPD_GROUP_GONE,
};

struct epd_seat {
    struct epd_lease *lease;  /* borrowed: leased, rearm or reclaiming */
    struct epd_lease *joiner; /* borrowed: joining */
    uint64_t ops, wait_us, work_us;
};

#define EPD_FAILED_RECENT 16u
struct epd_group {
    struct epd_core *core;
    struct epd_handle handle;
    uint64_t id;
    char name[EPD_NAME_BYTES];
    struct epd_shape shape;
    uint32_t timeout_ms, first_timeout_ms;
    bool ephemeral, allow_absent, has_key;
    uint8_t key[EPD_KEY_BYTES];
    uid_t uid;
    uint64_t creator; /* session */
    enum epd_group_state state;
    uint32_t generation;
    uint8_t device[EPD_MAX_RANKS];
    uint32_t devices;                            /* bit d: has seats on device d */
    struct epd_chunk *exchange[EPD_MAX_DEVICES]; /* owned */
    uint64_t set_in[EPD_MAX_DEVICES]; /* incarnation of the engine that knows the group */
    struct epd_seat seat[EPD_MAX_RANKS];
    /* the change that runs, or the last one */
    struct epd_cause cause;
    char cause_text[160];
    uint64_t change;           /* number of it; replies of older ones are ignored */
    uint32_t unrevoked, acked; /* bit d: REVOKE not yet answered; GENERATION answered */
    unsigned outstanding;      /* replies of this phase */
    bool again, destroy;       /* another change, or the end, follows */
    struct epd_cause again_cause;
    char again_text[160];
    bool leased_once;
    unsigned refs; /* requests in flight and open uv handles that point here */
    uv_timer_t revoke_timer;
    struct epd_waiters waiters;   /* for any change of state */
    struct epd_waiters destroyed; /* for the end */
    uint64_t failed_epochs;
    uint64_t failing[EPD_FAILED_RECENT]; /* epochs failed last, of this generation */
    unsigned n_failing;
};

/* ---- lease ---- */

enum epd_lease_state {
    EPD_LEASE_JOINING,    /* reserved; the engine has not set the seat */
    EPD_LEASE_LEASED,     /* in use */
    EPD_LEASE_REARM,      /* the generation changed; the client has not asked yet */
    EPD_LEASE_RECLAIMING, /* lost, released or taken over; the engine may still use it */
    EPD_LEASE_GONE,
};

struct epd_lease {
    struct epd_handle handle;
    uint64_t id;
    struct epd_session *session; /* borrowed */
    struct epd_group *group;     /* borrowed */
    uint32_t rank, depth;
    enum epd_lease_state state;
    struct epd_chunk *chunk; /* borrowed; NULL: no ring yet */
    uint64_t offset;
    bool sent;                   /* SEAT_SET is on its way or done */
    bool clearing;               /* SEAT_CLEAR is on its way */
    bool leaving;                /* end it when SEAT_SET is answered */
    uint64_t set_in;             /* incarnation of the engine that knows the seat */
    struct epd_acquire *acquire; /* owned; the call that waits, NULL: answered */
    struct epd_waiters gone;
    struct epd_desc *desc[EPD_MAX_DESCS]; /* owned */
    uint32_t desc_generation[EPD_MAX_DESCS];
    struct epd_lease *next; /* of the session */
};

/* ---- helpers ---- */

/* Something that a stopping core waits for has ended. */
void epd_core_check_stopped(struct epd_core *core);

static inline struct epd_device *epd_lease_device_of(const struct epd_lease *lease)
{
    return lease->group->core->device[lease->group->device[lease->rank]];
}
/* The engine of the device now running knows about it. */
static inline bool epd_known_to(const struct epd_device *device, uint64_t incarnation)
{
    return epd_device_configured(device) && incarnation == epd_device_incarnation(device);
}
#define EPD_FOR_DEVICES(index, mask)                                                               \
    for (unsigned index = 0; index < EPD_MAX_DEVICES; index++)                                     \
        if (((mask) >> index & 1u) != 0)

#endif
