/* epd: client library. A process attaches to the node's daemon, leases seats (ranks) of
 * expert-parallel groups, and dispatches and combines MoE tokens through shared memory.
 *
 * Threads: one `struct epd` may be used from several threads (control calls take its mutex). A
 * lease, and the ops bound to it, belong to one thread at a time. Data-path calls (epd_dispatch,
 * epd_combine, epd_release, epd_poll, epd_wait) take no lock, allocate nothing and make no system
 * call unless the engine sleeps (submit) or the caller has to wait (wait).
 * Fork: handles are dead in a child; every call there returns EPD_EFORKED (frees do nothing) and
 * closes nothing of the parent's; epd_close in the child only frees memory. Buffers are not mapped
 * in the child. All file descriptors are close-on-exec.
 * Errors: enum epd_status, 0 or negative; control calls also fill *err (may be NULL) with a message
 * that names field, value and remedy. Outputs are set only on success.
 * Structs begin with `size`; initialise them with the _INIT literals. */
#ifndef EPD_H
#define EPD_H

#include <stddef.h>
#include <stdint.h>

#include "proto/errors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EPD_API __attribute__((visibility("default")))

struct epd;        /* a session with the daemon */
struct epd_lease;  /* a seat of a group held by this session */
struct epd_buffer; /* memory on the daemon's device, mapped here */
struct epd_op;     /* buffers of a dispatch or combine, validated and bound once */

/* Values of proto/layout.h, repeated here so that this header stands alone. */
enum epd_api_dtype { EPD_BF16 = 1, EPD_FP16 = 2, EPD_FP32 = 3 };
enum epd_api_mode { EPD_LL = 1, EPD_HT = 2 };
enum epd_api_layout { EPD_EXPERT_MAJOR = 1, EPD_RANK_MAJOR = 2, EPD_FLAT = 3 };
enum epd_api_ids { EPD_INT32 = 1, EPD_INT64 = 2 };

/* ---- session ---------------------------------------------------------------------------- */

struct epd_open_options {
    uint32_t size;
    const char *socket; /* NULL: EPD_SOCKET, then the default path */
    const char *name;   /* at most 63 bytes, shown to operators; NULL: the program's name */
    int64_t timeout_ns; /* of every control call; 0: 5 s. Also how long open retries a daemon
                           that is not there yet, or is draining, when wait_daemon is set */
    uint32_t wait_daemon;
    uint32_t reserved;
};
#define EPD_OPEN_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(struct epd_open_options), 0, 0, 0, 0, 0                                             \
    }

/* Library version "0.1.0". */
EPD_API const char *epd_version(void);
/* "EINVAL" / "invalid argument"; never NULL. */
EPD_API const char *epd_status_string(enum epd_status status);
EPD_API const char *epd_status_describe(enum epd_status status);
/* The largest thing the error kills: enum epd_scope. */
EPD_API enum epd_scope epd_status_scope_of(enum epd_status status);

/* Attach to the daemon. The session lives until epd_close, the death of this process, or the
 * death of the daemon. `options` may be NULL. Errors: EUNREACHABLE, EVERSION, EPERM, ELIMIT. */
EPD_API enum epd_status epd_open(const struct epd_open_options *options, struct epd **out,
                                 struct epd_error *err);
/* Close the session: leases are released, buffers unmapped, every handle of it dies (no other
 * thread may be using one). NULL is fine. */
EPD_API void epd_close(struct epd *epd);
/* EPD_OK while the session is alive, else ESESSIONLOST / EDAEMONLOST. No RPC. */
EPD_API enum epd_status epd_session_check(struct epd *epd);
EPD_API uint64_t epd_session_id(const struct epd *epd);

/* ---- groups ----------------------------------------------------------------------------- */

struct epd_group_config {
    uint32_t size;
    const char *name; /* 1..63 of [A-Za-z0-9._-] */
    uint32_t ranks, experts, max_tokens, topk, hidden;
    uint32_t dtype;            /* enum epd_api_dtype */
    uint32_t mode;             /* EPD_LL */
    uint32_t layout;           /* EPD_EXPERT_MAJOR or EPD_RANK_MAJOR */
    uint32_t timeout_ms;       /* of an op; 0: 5000 */
    uint32_t first_timeout_ms; /* of the group's first op; 0: 60000 */
    uint32_t ephemeral;        /* 1: destroyed when its last lease goes */
    uint32_t allow_absent;     /* 1: seats that nobody leases answer with zero tokens */
    const uint32_t *placement; /* [ranks] device of each seat, or NULL: the daemon's rule */
    const uint8_t *key;        /* 16 bytes that lessees must show, or NULL */
};
#define EPD_GROUP_CONFIG_INIT                                                                      \
    {                                                                                              \
        sizeof(struct epd_group_config), 0, 0, 0, 0, 0, 0, EPD_BF16, EPD_LL, EPD_EXPERT_MAJOR, 0,  \
            0, 0, 0, 0, 0                                                                          \
    }

struct epd_group_info {
    uint32_t size;
    uint64_t id; /* {index, generation}: pass it to epd_lease_acquire */
    char name[64];
    uint32_t ranks, experts, max_tokens, topk, hidden, dtype, mode, layout;
    uint32_t timeout_ms, first_timeout_ms;
    uint32_t generation;
    uint32_t leased;    /* seats leased now */
    uint8_t device[64]; /* of each seat */
};
#define EPD_GROUP_INFO_INIT                                                                        \
    {                                                                                              \
        .size = sizeof(struct epd_group_info)                                                      \
    }

/* Create a group. Errors: EINVAL (field named), EEXIST, ELIMIT. */
EPD_API enum epd_status epd_group_create(struct epd *epd, const struct epd_group_config *config,
                                         struct epd_group_info *out, struct epd_error *err);
/* Look a group up by name. Errors: ENOENT. */
EPD_API enum epd_status epd_group_open(struct epd *epd, const char *name,
                                       struct epd_group_info *out, struct epd_error *err);
/* Destroy a group that has no leases (force 0) or take it from its lessees (force 1; creator's uid
 * or administrator). */
EPD_API enum epd_status epd_group_destroy(struct epd *epd, uint64_t group, uint32_t force,
                                          struct epd_error *err);

/* ---- seats ------------------------------------------------------------------------------ */

struct epd_lease_options {
    uint32_t size;
    uint32_t ring_depth; /* power of two 4..4096; 0: 256 */
    uint32_t takeover;   /* 1: take the seat from a lessee of the same uid */
    uint32_t reserved;
    const uint8_t *key; /* 16 bytes, when the group has a key */
};
#define EPD_LEASE_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(struct epd_lease_options), 0, 0, 0, 0                                               \
    }

/* Lease seat `rank`. Exclusive. The lease starts armed, at the group's current generation and
 * epoch 0. Errors: ENOENT/ESTALE (group), EINVAL (rank), EBUSY (leased), EPERM (uid, key),
 * EDEVICE. */
EPD_API enum epd_status epd_lease_acquire(struct epd *epd, uint64_t group, uint32_t rank,
                                          const struct epd_lease_options *options,
                                          struct epd_lease **out, struct epd_error *err);
/* Give the seat back (other seats see EPD_ERANKLOST). Ops bound to it die. NULL is fine. */
EPD_API void epd_lease_release(struct epd_lease *lease);
/* After a completion of scope group (generation changed): learn the new generation, start again at
 * epoch 0. Completions not yet consumed stay readable. Without a change it changes nothing. Errors:
 * ESESSIONLOST, EDEVICE (engine not back yet: call again), ETIMEDOUT. */
EPD_API enum epd_status epd_rearm(struct epd_lease *lease, struct epd_error *err);
EPD_API uint32_t epd_lease_rank(const struct epd_lease *lease);
EPD_API uint32_t epd_lease_device(const struct epd_lease *lease);
EPD_API uint32_t epd_lease_generation(const struct epd_lease *lease);
/* Epoch that the next dispatch will use. */
EPD_API uint64_t epd_lease_epoch(const struct epd_lease *lease);

/* ---- buffers ---------------------------------------------------------------------------- */

/* `bytes` of zeroed memory on `device`, part of the session's own chunks, 4096-aligned, mapped
 * here until epd_buffer_free or epd_close. Errors: EINVAL, ELIMIT, ENOMEM, EDEVICE. */
EPD_API enum epd_status epd_buffer_alloc(struct epd *epd, uint32_t device, uint64_t bytes,
                                         struct epd_buffer **out, struct epd_error *err);
/* Lend memory of the client's own: a memfd sealed against shrinking, growing and sealing, with its
 * pages allocated. The fd stays the caller's. Inputs only (x, ids, weights, combine rows, out,
 * control); not as a receive area, which peers write. */
EPD_API enum epd_status epd_buffer_import(struct epd *epd, uint32_t device, int memfd,
                                          uint64_t bytes, struct epd_buffer **out,
                                          struct epd_error *err);
/* Ops bound to the buffer must be gone. NULL is fine. EBUSY, ETIMEDOUT, EFORKED: the
 * buffer lives on; otherwise it is gone (in the daemon with the session at the latest). */
EPD_API enum epd_status epd_buffer_free(struct epd_buffer *buffer, struct epd_error *err);
EPD_API void *epd_buffer_ptr(const struct epd_buffer *buffer);
EPD_API uint64_t epd_buffer_bytes(const struct epd_buffer *buffer);
EPD_API uint32_t epd_buffer_device(const struct epd_buffer *buffer);

/* ---- ops: bind once, submit many -------------------------------------------------------- */

/* A dense array inside a buffer. buffer NULL: array absent. `bytes` 0: up to the buffer's end.
 * stride: bytes from one row to the next; 0: dense. Offsets are multiples of 16 (ids and weights:
 * of their element size). */
struct epd_array {
    struct epd_buffer *buffer;
    uint64_t offset;
    uint64_t bytes;
    uint64_t stride;
};

/* Symbols: R ranks, L local experts, B max tokens, K top-k, H hidden.
 * Receive sets: recv and its metadata arrays may hold `sets` areas one after the other; each
 * submission picks one (double buffering). */
struct epd_dispatch_config {
    uint32_t size;
    uint32_t ids_type; /* enum epd_api_ids */
    uint32_t sets;     /* 1.. */
    uint32_t reserved;
    struct epd_array x;       /* [rows, H] dtype, read */
    struct epd_array ids;     /* [rows, K] global expert ids, -1 = dropped, read */
    struct epd_array weights; /* [rows, K] fp32, read; rank-major only */
    struct epd_array recv;    /* [sets, L, R*B, H] expert-major, [sets, R, B, H] rank-major */
    struct epd_array counts;  /* [sets, L] or [sets, R] int32 */
    struct epd_array ranges;  /* [sets, L, R, {begin, count}] int32; expert-major, may be absent */
    struct epd_array src;     /* [sets, recv rows] int32: token of the source rank; may be absent */
    struct epd_array recv_ids;     /* [sets, R, B, K] int32 local ids, -1; rank-major */
    struct epd_array recv_weights; /* [sets, R, B, K] fp32, +0 where not local; rank-major */
    struct epd_array control;      /* b words and notify words; may be absent */
};
#define EPD_DISPATCH_CONFIG_INIT                                                                   \
    {                                                                                              \
        .size = sizeof(struct epd_dispatch_config), .ids_type = EPD_INT64, .sets = 1               \
    }

struct epd_combine_config {
    uint32_t size;
    uint32_t sets;
    struct epd_array rows;    /* as recv: expert outputs (expert-major) or per-rank sums; read by
                                 every rank until released */
    struct epd_array weights; /* [rows, K] fp32; expert-major */
    struct epd_array out;     /* [rows, H] dtype, written: b rows */
    struct epd_array control; /* may be absent */
};
#define EPD_COMBINE_CONFIG_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(struct epd_combine_config), .sets = 1                                       \
    }

/* Validate the arrays against the group's shape and bind them. Errors: EINVAL naming the array. */
EPD_API enum epd_status epd_dispatch_bind(struct epd_lease *lease,
                                          const struct epd_dispatch_config *config,
                                          struct epd_op **out, struct epd_error *err);
EPD_API enum epd_status epd_combine_bind(struct epd_lease *lease,
                                         const struct epd_combine_config *config,
                                         struct epd_op **out, struct epd_error *err);
/* NULL is fine. The op must not be in flight (EBUSY). EBUSY, ETIMEDOUT, EFORKED: it lives on. */
EPD_API enum epd_status epd_op_unbind(struct epd_op *op, struct epd_error *err);

struct epd_submit {
    uint32_t size;
    uint32_t b;                       /* tokens this time, 0..B */
    uint32_t tag;                     /* equal on all ranks, e.g. the layer; comes back */
    uint32_t flags;                   /* EPD_SUBMIT_* */
    uint64_t in_row;                  /* first row of x, ids, weights */
    uint64_t out_row;                 /* combine: first row of out */
    uint64_t set;                     /* receive set */
    uint64_t b_offset, notify_offset; /* in control, with the flags below */
    uint64_t epoch;                   /* combine: epoch of its dispatch; dispatch: ignored */
};
#define EPD_SUBMIT_B_INDIRECT 1u /* b is the u32 at control + b_offset */
#define EPD_SUBMIT_NOTIFY 2u     /* u64 at control + notify_offset becomes 1 when complete */
#define EPD_SUBMIT_INIT                                                                            \
    {                                                                                              \
        sizeof(struct epd_submit), 0, 0, 0, 0, 0, 0, 0, 0, 0                                       \
    }

struct epd_ticket {
    uint64_t ticket; /* of the lease: 0, 1, 2, ... */
    uint64_t epoch;
};

/* Submit (send): returns at once; the engine finishes the op alone; wait or poll to complete it.
 * A dispatch takes epd_lease_epoch and advances it; reading a completion that failed without
 * consuming its epoch takes it back. ticket_out may be NULL.
 * Errors: EBUSY (ring full: consume completions), EINVAL (b, set, flags, op kind; an epoch that was
 * not dispatched), EFORKED; after a completion of scope group its cause until epd_rearm, after the
 * end of the session its cause. */
EPD_API enum epd_status epd_dispatch(struct epd_op *op, const struct epd_submit *submit,
                                     struct epd_ticket *ticket_out);
EPD_API enum epd_status epd_combine(struct epd_op *op, const struct epd_submit *submit,
                                    struct epd_ticket *ticket_out);
/* Declare the receive set of dispatch `epoch` free without a combine. */
EPD_API enum epd_status epd_release(struct epd_lease *lease, uint64_t epoch,
                                    struct epd_ticket *ticket_out);

/* What became of a submission. status != EPD_OK: `phase`, `field`, `value`, `rank`, `other_rank`
 * say where and who; epd_result_describe makes a sentence of it. */
struct epd_result {
    uint64_t ticket, epoch, released_epoch, value;
    enum epd_status status;
    uint32_t tag, kind, phase, field;
    int32_t rank, other_rank; /* at fault, or -1 */
    uint32_t generation, rows, wait_us, work_us;
    uint32_t epoch_consumed; /* 1: go on with the next epoch; 0: submit this one again */
    uint32_t reserved;
};

/* Completions come in submission order per lease. Poll: EPD_EAGAIN when none is ready. Wait: for
 * the next completion, at most timeout_ns (<0: for ever, but never past the death of engine or
 * daemon); EPD_ETIMEDOUT leaves everything as it is. Both return EPD_OK when *out was filled,
 * whatever out->status says. Otherwise, each after what was posted before it: EINVAL (wait with
 * nothing in flight), ESESSIONLOST, EDAEMONLOST, EDEVICE (engine down for 10 s), EINTERNAL (the
 * ring was overwritten). */
EPD_API enum epd_status epd_poll(struct epd_lease *lease, struct epd_result *out);
EPD_API enum epd_status epd_wait(struct epd_lease *lease, int64_t timeout_ns,
                                 struct epd_result *out);
/* As epd_wait, but consumes all completions up to and including `ticket`: returns the first failed
 * one among them, else that of `ticket`. EINVAL for a ticket already consumed or not yet issued.
 * An error consumes nothing; what is there can still be polled. */
EPD_API enum epd_status epd_wait_ticket(struct epd_lease *lease, uint64_t ticket,
                                        int64_t timeout_ns, struct epd_result *out);
/* A sentence for people, at most len bytes with the final 0. Returns buf. */
EPD_API const char *epd_result_describe(const struct epd_result *result, char *buf, size_t len);

#ifdef __cplusplus
}
#endif

#endif
