/* Messages between the supervisor and an engine: one SEQPACKET datagram each, on a socketpair made
 * at spawn (fd 3 of the engine), with file descriptors by SCM_RIGHTS. Both ends are our own
 * binaries of one build (hello checks the ABI); lengths and enums are still validated.
 *
 * Requests carry seq > 0 and get exactly one EPD_MSG_REPLY with the same seq; reports from the
 * engine carry seq 0. Requests are handled in order. The order of a generation change is
 *   supervisor: REVOKE(all epochs) to every engine of the group, wait for all replies
 *               (revoke_ms, else SIGKILL + reap), GENERATION to all, wait, ARM to all.
 * and of a failed epoch
 *   engine: EPOCH_FAILED report; supervisor: REVOKE(epoch) to all, wait, FAIL to all.
 * The reply to REVOKE means: this engine has no running task of it and starts none.
 * EOF of the socket is the death of the other side.
 */
#ifndef EPD_PROTO_ENGINE_H
#define EPD_PROTO_ENGINE_H

#include <stdint.h>

#include "proto/layout.h"

#define EPD_ENGINE_FD 3      /* the engine's end of the socketpair */
#define EPD_ENGINE_LOCK_FD 4 /* inherited flock of <socket>.lock: held until the engine exits */
#define EPD_EPOCH_ALL UINT64_MAX

enum epd_msg_type {
    /* supervisor -> engine (requests) */
    EPD_MSG_CONFIG = 1, /* first message; reply carries 3 fds: status page, doorbell eventfd,
                           bell memfd (engine-private, for peers) */
    EPD_MSG_PEER = 2,   /* a peer engine: 3 fds as above; replaces an older incarnation */
    EPD_MSG_PEER_GONE = 3,
    EPD_MSG_CHUNK_CREATE = 4, /* reply carries 1 fd */
    EPD_MSG_CHUNK_ADOPT = 5,  /* 1 fd: a peer's chunk, an import, or an own one after a restart */
    EPD_MSG_CHUNK_DROP = 6,
    EPD_MSG_GROUP_SET = 7,
    EPD_MSG_GROUP_DROP = 8,
    EPD_MSG_SEAT_SET = 9, /* lease: 1 fd, the session's doorbell eventfd */
    EPD_MSG_SEAT_CLEAR = 10,
    EPD_MSG_DESC_SET = 11,
    EPD_MSG_DESC_CLEAR = 12,
    EPD_MSG_REVOKE = 13,
    EPD_MSG_FAIL = 14,
    EPD_MSG_GENERATION = 15,
    EPD_MSG_ARM = 16,
    EPD_MSG_PING = 17,        /* reply carries struct epd_msg_stats */
    EPD_MSG_STOP = 18,        /* complete everything with EPD_EDAEMONLOST, reply, exit 0 */
    EPD_MSG_GROUP_STATS = 19, /* epd_msg_epoch names the group; reply: epd_msg_group_stats */
    /* engine -> supervisor */
    EPD_MSG_REPLY = 64,
    EPD_MSG_EPOCH_FAILED = 65, /* a deadline passed or ranks disagree */
};

struct epd_msg_header {
    uint16_t type; /* enum epd_msg_type */
    uint16_t reserved;
    uint32_t bytes; /* of the whole datagram */
    uint64_t seq;
};

enum epd_chunk_kind {
    EPD_CHUNK_EXCHANGE = 1, /* engine-private: counts, credits, flags of one group on one device */
    EPD_CHUNK_RINGS = 2,    /* one session's ring areas */
    EPD_CHUNK_BUFFERS = 3,  /* one session's buffers */
    EPD_CHUNK_IMPORT = 4,   /* client memory; never a peer's target */
};

struct epd_msg_config {
    struct epd_msg_header h;
    uint32_t abi;
    uint32_t device;
    uint64_t incarnation;
    uint32_t workers; /* threads that run tasks, >= 1 */
    uint32_t spin_us; /* how long to poll before sleeping; UINT32_MAX: decide */
    uint32_t log_level;
    uint32_t reserved;
};

struct epd_msg_peer {
    struct epd_msg_header h;
    uint32_t device;
    uint32_t reserved;
};

struct epd_msg_chunk {
    struct epd_msg_header h;
    uint64_t chunk;  /* id, unique in the daemon's life, > 0 */
    uint64_t bytes;  /* multiple of 4096 */
    uint32_t kind;   /* enum epd_chunk_kind */
    uint32_t device; /* the owner */
};

/* GROUP_SET: create, or (same group id) replay after a restart. Chunks named must be known. */
struct epd_msg_group {
    struct epd_msg_header h;
    uint64_t group;
    uint32_t generation;
    uint32_t armed; /* 0: takes no entries until ARM */
    struct epd_shape shape;
    uint32_t timeout_ms, first_timeout_ms;
    uint64_t present;                   /* bit r: rank r takes part (allow_absent clears) */
    uint8_t device[EPD_MAX_RANKS];      /* of each rank */
    uint64_t exchange[EPD_MAX_DEVICES]; /* exchange chunk by device, 0: no seat there */
};

struct epd_msg_seat {
    struct epd_msg_header h;
    uint64_t group;
    uint32_t rank;
    uint32_t depth;
    uint64_t chunk; /* ring area: already zero (new lease), or in use (replay after restart) */
    uint64_t offset;
    uint32_t replay; /* 1: keep the ring, go on at header.completed */
    uint32_t reserved;
};

/* Arrays of an op descriptor; also the index in BindOpRequest.arrays. */
enum epd_array_role {
    EPD_ARRAY_X = 0, /* dispatch x; combine: rows */
    EPD_ARRAY_IDS,
    EPD_ARRAY_WEIGHTS,
    EPD_ARRAY_RECV, /* dispatch recv; combine: out */
    EPD_ARRAY_COUNTS,
    EPD_ARRAY_RANGES,
    EPD_ARRAY_SRC,
    EPD_ARRAY_RECV_IDS,
    EPD_ARRAY_RECV_WEIGHTS,
    EPD_ARRAY_CONTROL,
    EPD_ARRAY_ROLES
};
#define EPD_ARRAY_ROWS EPD_ARRAY_X
#define EPD_ARRAY_OUT EPD_ARRAY_RECV

struct epd_array_ref {
    uint64_t chunk; /* 0: absent */
    uint64_t offset;
    uint64_t bytes;  /* size of the whole bound array */
    uint64_t stride; /* bytes from row to row */
};

struct epd_msg_desc {
    struct epd_msg_header h;
    uint64_t group;
    uint32_t rank;
    uint32_t desc_index; /* 0..EPD_MAX_DESCS-1, of this seat */
    uint32_t desc_generation;
    uint32_t kind; /* EPD_OP_DISPATCH or EPD_OP_COMBINE */
    uint32_t ids_type;
    uint32_t sets;
    struct epd_array_ref array[EPD_ARRAY_ROLES];
};
#define EPD_MAX_DESCS 256u /* a seat */

/* REVOKE, FAIL, GENERATION, ARM, GROUP_DROP, SEAT_CLEAR and the EPOCH_FAILED report. */
struct epd_msg_epoch {
    struct epd_msg_header h;
    uint64_t group;
    uint64_t epoch;      /* EPD_EPOCH_ALL: every epoch of the generation */
    uint32_t generation; /* current one; GENERATION: the new one */
    int32_t status;      /* cause: enum epd_status */
    int32_t rank;        /* at fault, -1 none; SEAT_CLEAR: the seat */
    int32_t other_rank;
    uint32_t phase;   /* enum epd_phase */
    uint32_t kind;    /* enum epd_op_kind */
    uint64_t present; /* GENERATION, ARM */
};

struct epd_msg_reply {
    struct epd_msg_header h;
    int32_t status;
    uint32_t reserved;
    char message[256]; /* when status != 0 */
};

/* Reply to PING. */
struct epd_msg_stats {
    struct epd_msg_reply r;
    uint64_t ops, tasks, wakeups, chunks, chunk_bytes;
    uint32_t seats, groups;
    uint64_t rss_bytes;
};

/* Reply to GROUP_STATS: seats of this engine filled, others 0. */
struct epd_msg_group_stats {
    struct epd_msg_reply r;
    struct {
        uint64_t ops, wait_us, work_us, rows;
    } seat[EPD_MAX_RANKS];
};
#define EPD_MSG_MAX_BYTES 4096u

/* The fd socket (clients): what the broker answers to a 16-byte token. */
#define EPD_TOKEN_BYTES 16u
struct epd_fd_reply {
    int32_t status; /* enum epd_status */
    uint32_t kind;  /* 1 session, 2 fd grant (1 fd attached), 3 import taken */
    uint64_t id;
};
#define EPD_FD_REPLY_SESSION 1u
#define EPD_FD_REPLY_GRANT 2u
#define EPD_FD_REPLY_IMPORT 3u

#endif
