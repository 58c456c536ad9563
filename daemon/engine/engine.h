/* Inside of the engine process: who owns what.
 *
 * One thread, the scheduler, owns every structure here. Worker threads (config `workers` - 1 of
 * them; the scheduler itself is the first worker) only run tasks: straight-line work on memory that
 * never waits for anybody. A task's end is seen through its batch counter.
 *
 *   main.c      arguments, signals, start, exit
 *   control.c   datagrams of proto/engine.h -> handlers, replies
 *   chunks.c    chunk id -> mapping
 *   peers.c     other engines: status pages, bells, doorbells
 *   doorbells.c what wakes a sleeping engine
 *   sched.c     the loop: control, groups, tasks, sleep
 *   workers.c   task queue and threads
 *   transport.h memory and task bodies of one backend; host/ is the host backend
 *   group.c     groups and seats: create, drop
 *   desc.c      op descriptors
 *   change.c    revoke, failed epoch, generation change; the step over all groups
 *   ring.c      take entries, post completions
 *   exchange.c  the exchange chunks
 *   route.c     ids -> maps
 *   op.c dispatch.c combine.c   state machines of the ops
 */
#ifndef EPD_ENGINE_ENGINE_H
#define EPD_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/engine.h"
#include "proto/status.h"

struct epd_engine;
struct epd_control;
struct epd_doorbells;
struct epd_group;
struct epd_peers;
struct epd_transport_ops;

/* ---- chunks.c ---- */

struct epd_chunk {
    uint64_t id;
    uint64_t bytes;
    uint32_t kind;   /* enum epd_chunk_kind */
    uint32_t device; /* owner */
    uint8_t *base;   /* mapping here, read-write */
};

struct epd_chunks;
enum epd_status epd_chunks_create(const struct epd_transport_ops *transport,
                                  struct epd_chunks **out, struct epd_error *err);
void epd_chunks_destroy(struct epd_chunks *chunks);
/* New chunk; *fd_out (owned by the caller) is what the supervisor keeps and hands out. */
enum epd_status epd_chunks_add_new(struct epd_chunks *chunks, const struct epd_msg_chunk *msg,
                                   int *fd_out, struct epd_error *err);
/* Map an existing chunk; fd is borrowed. Imports are checked (sealed, size, pages). */
enum epd_status epd_chunks_adopt(struct epd_chunks *chunks, const struct epd_msg_chunk *msg, int fd,
                                 struct epd_error *err);
enum epd_status epd_chunks_drop(struct epd_chunks *chunks, uint64_t id, struct epd_error *err);
/* NULL when unknown. Valid until dropped. */
const struct epd_chunk *epd_chunks_find(const struct epd_chunks *chunks, uint64_t id);
void epd_chunks_totals(const struct epd_chunks *chunks, uint64_t *count, uint64_t *bytes);

/* ---- workers.c ---- */

/* A task is a slice of a batch: run(arg, index) for index in [0, count). The scheduler submits a
 * batch and later sees epd_batch_done(). The batch and everything it points to stay alive until
 * then. Tasks of several batches interleave: one slice of each in turn (fairness). */
struct epd_batch {
    void (*run)(void *arg, uint32_t index);
    void *arg;
    uint32_t count;
    _Atomic uint32_t next;  /* next index to claim */
    _Atomic uint32_t left;  /* slices not finished; 0 = done (acquire) */
    _Atomic bool stop;      /* revoked: unclaimed slices are skipped, not run */
    struct epd_batch *link; /* of the queue */
};

struct epd_workers;
/* `threads` >= 1 counts the scheduler. */
enum epd_status epd_workers_create(uint32_t threads, struct epd_workers **out,
                                   struct epd_error *err);
/* Joins the threads; no batch may be in flight. */
void epd_workers_destroy(struct epd_workers *workers);
void epd_workers_submit(struct epd_workers *workers, struct epd_batch *batch);
/* Run at most one slice here (scheduler thread). False when nothing was there to run. */
bool epd_workers_run_one(struct epd_workers *workers);
/* True when no batch is queued or running. */
bool epd_workers_idle(const struct epd_workers *workers);
/* Claim nothing more of the batch; done once running slices have finished. */
void epd_batch_revoke(struct epd_batch *batch);
static inline bool epd_batch_done(const struct epd_batch *batch)
{
    return atomic_load_explicit(&batch->left, memory_order_acquire) == 0;
}
uint64_t epd_workers_tasks(const struct epd_workers *workers);

/* ---- peers.c ---- */

/* Something was published to the exchange chunk of `device`: ring its bell at the end of this
 * scheduler step (once, and its doorbell if it sleeps). Own device and unknown peers: no-op. */
void epd_engine_publish_to(struct epd_engine *engine, uint32_t device);

/* ---- the engine ---- */

struct epd_engine {
    uint32_t device;
    uint64_t now_ns; /* refreshed once a scheduler step */
    const struct epd_transport_ops *transport;
    struct epd_chunks *chunks;
    struct epd_workers *workers;
    struct epd_status_page *status; /* owned mapping */
    struct epd_group *groups;       /* list; group.c */
    uint64_t ops;                   /* completions posted */
    struct epd_peers *peers;
    struct epd_control *control;
    struct epd_doorbells *doorbells; /* doorbells.h */
};

/* ---- group.c and friends: called by control.c and sched.c ---- */

enum epd_status epd_groups_set(struct epd_engine *engine, const struct epd_msg_group *msg,
                               struct epd_error *err);
enum epd_status epd_groups_drop(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                struct epd_error *err);
/* doorbell_fd: nothing is kept of it here (sched.c polls it). Writes the ring header. */
enum epd_status epd_groups_seat_set(struct epd_engine *engine, const struct epd_msg_seat *msg,
                                    struct epd_error *err);
/* Quiet (after a generation change): forgets ring and descriptors of the seat. */
enum epd_status epd_groups_seat_clear(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                      struct epd_error *err);
enum epd_status epd_groups_desc_set(struct epd_engine *engine, const struct epd_msg_desc *msg,
                                    struct epd_error *err);
enum epd_status epd_groups_desc_clear(struct epd_engine *engine, const struct epd_msg_desc *msg,
                                      struct epd_error *err);
/* Start a revoke; the reply to msg->h.seq is sent by epd_control_reply once drained (from a
 * scheduler step, at once when nothing runs). */
enum epd_status epd_groups_revoke(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                  struct epd_error *err);
enum epd_status epd_groups_fail(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                struct epd_error *err);
enum epd_status epd_groups_generation(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                      struct epd_error *err);
enum epd_status epd_groups_arm(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                               struct epd_error *err);
enum epd_status epd_groups_stats(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                 struct epd_msg_group_stats *out, struct epd_error *err);
void epd_groups_totals(const struct epd_engine *engine, uint32_t *groups, uint32_t *seats);
/* Does any descriptor, ring or group refer to the chunk? (CHUNK_DROP refuses then.) */
bool epd_groups_use_chunk(const struct epd_engine *engine, uint64_t chunk);
/* Finish running tasks, then complete every outstanding entry with `status` (stop, supervisor
 * lost), wake all waiters, forget all groups. */
void epd_groups_poison(struct epd_engine *engine, enum epd_status status);

/* One pass over all groups: take entries, advance ops, post completions. True when anything moved.
 */
bool epd_groups_step(struct epd_engine *engine);
/* Earliest deadline of a waiting op (ns, monotonic), UINT64_MAX: none. */
uint64_t epd_groups_deadline(const struct epd_engine *engine);
/* After `sleeping` was set: is there an entry in any ring that a step would take? (seq_cst loads)
 */
bool epd_groups_pending(const struct epd_engine *engine);

/* ---- control.c: called by group.c ---- */

/* Reply to request `seq`. err NULL or status OK: success. */
void epd_control_reply(struct epd_engine *engine, uint64_t seq, const struct epd_error *err);
/* Send a report (EPD_MSG_EPOCH_FAILED). */
void epd_control_report(struct epd_engine *engine, struct epd_msg_epoch *msg);

#endif
