/* Structures behind group.c, ring.c, exchange.c, route.c, op.c, dispatch.c and combine.c. All owned
 * by the scheduler thread; tasks read what they need through `struct epd_op`, whose fields used by
 * a running batch do not change while it runs. */
#ifndef EPD_ENGINE_GROUP_INTERNAL_H
#define EPD_ENGINE_GROUP_INTERNAL_H

#include "daemon/engine/engine.h"
#include "daemon/engine/transport.h"
#include "proto/exchange.h"
#include "proto/ring.h"
#include "proto/version.h"

#define EPD_OP_WINDOW 8u /* ops of a seat in flight; more wait in the ring */
#define EPD_FAILED_KEPT 64u
#define EPD_UNRELEASED_MAX 2u

/* Why something failed; travels from supervisor messages into completions. */
struct epd_cause {
    int32_t status; /* 0: none */
    int16_t rank, other_rank;
    uint8_t phase;
    uint8_t field;
    uint64_t value;
};

/* An array of a descriptor, resolved. base NULL: absent. */
struct epd_array_map {
    uint8_t *base; /* first byte of the bound range */
    uint64_t chunk, offset, bytes, stride;
};

struct epd_desc {
    uint32_t generation; /* 0: free */
    uint32_t kind, ids_type, sets;
    struct epd_array_map array[EPD_ARRAY_ROLES];
};

/* Where one selection goes: row = base[bucket] + index of the destination's receive area. bucket =
 * global expert (expert-major) or destination rank (rank-major). */
struct epd_term {
    uint16_t bucket;
    uint8_t k;
    uint8_t write; /* first selection of this row: dispatch writes it */
    uint32_t index;
};

/* One epoch at one seat, from the dispatch being taken to its memory being free. */
struct epd_turn {
    bool active;        /* dispatch taken, not yet released */
    bool dispatched;    /* dispatch complete */
    bool combined;      /* combine taken */
    bool summed;        /* combine complete here; peers may still read the rows */
    bool release_asked; /* release entry taken */
    bool rows_shared;   /* combine header published: peers may read rows */
    uint64_t epoch;
    uint64_t combine_ticket;
    struct epd_cause cause; /* why it was closed, when by a failure */
    uint32_t b;
    uint64_t need;                        /* ranks that tokens were sent to */
    uint64_t unread;                      /* ranks that may still read this seat's rows */
    const uint8_t *recv_begin, *recv_end; /* receive set */
    const uint8_t *rows_begin, *rows_end; /* combine rows */
    /* the map; owned, sized by the shape */
    int32_t *ids;           /* [B, K] validated, -1 dropped */
    struct epd_term *terms; /* [B, K] */
    uint8_t *n_terms;       /* [B] */
    uint32_t *count;        /* [C] rows for each bucket */
    uint32_t *base;         /* [C] first row of this source in the bucket */
};

enum epd_op_state {
    EPD_OP_FREE = 0,
    EPD_OP_WAIT,     /* taken; held (unreleased memory) or waiting for its dispatch */
    EPD_OP_ROUTE,    /* a task reads and checks the ids */
    EPD_OP_EXCHANGE, /* published; counts, credits, rows or sums in motion */
    EPD_OP_SETTLE,   /* dispatch: rows are in; earlier combines are not all released */
    EPD_OP_DONE,     /* result known; posted in its turn */
    EPD_OP_STATES
};

/* Rows of one destination, as a dispatch task needs them (from its credit). */
struct epd_target {
    uint8_t *recv;
    int32_t *src;
    int32_t *ids;
    float *weights;
    uint64_t stride;
};

struct epd_op {
    enum epd_op_state state;
    struct epd_seat *seat;
    struct epd_turn *turn;
    const struct epd_desc *desc;
    struct epd_entry entry; /* private copy, validated */
    uint32_t b;
    uint64_t ticket;
    uint64_t order; /* of the exchange header: taken before this op, see proto/README.md */
    uint64_t taken_ns, deadline_ns, batch_ns, busy_ns;
    bool revoked;  /* start nothing more; FAIL or GENERATION will finish it */
    bool reported; /* EPOCH_FAILED was sent */
    bool running;  /* batch in flight */
    bool published, credited;
    bool consumed;    /* the epoch is over for this seat, whatever came of the op */
    uint64_t sent;    /* ranks whose rows are written and done words stored */
    uint64_t wave;    /* ranks of the running batch */
    uint64_t arrived; /* ranks whose done words are in */
    struct epd_cause cause;
    uint32_t rows;
    uint32_t slice_tokens;
    struct epd_batch batch;
    struct epd_target target[EPD_MAX_RANKS];
    const uint8_t *peer_rows[EPD_MAX_RANKS]; /* combine: first row of each needed rank's set */
    uint64_t peer_stride[EPD_MAX_RANKS];
};

struct epd_seat {
    struct epd_group *group;
    uint32_t rank;
    bool leased;
    uint64_t chunk; /* of the ring area */
    uint8_t *ring;
    uint32_t depth;
    uint64_t taken;         /* next ticket to take */
    uint64_t posted;        /* completions posted */
    uint64_t next_dispatch; /* epoch of the next dispatch */
    uint64_t next_combine;  /* combines of lower epochs are no longer accepted */
    uint64_t released_epoch;
    struct epd_op op[EPD_OP_WINDOW]; /* slot = ticket % window */
    struct epd_turn turn[EPD_EPOCH_SLOTS];
    struct epd_desc desc[EPD_MAX_DESCS];
    uint64_t ops, wait_us, work_us, rows;
};

/* What the exchange brought for one epoch, shared by the seats of this device. */
struct epd_epoch {
    uint64_t epoch;
    bool used;
    uint64_t headers;  /* ranks whose dispatch header and counts are in */
    uint64_t credits;  /* ranks whose credit is in */
    uint64_t combines; /* ranks whose combine header is in */
    struct epd_xheader dispatch[EPD_MAX_RANKS];
    struct epd_xheader combine[EPD_MAX_RANKS];
    struct epd_xcredit credit[EPD_MAX_RANKS];
    uint32_t *counts; /* [R][C], owned */
};

struct epd_failed {
    uint64_t epoch;
    struct epd_cause cause;
};

struct epd_revoke {
    uint64_t seq; /* of the request to answer; 0: none pending */
    uint64_t epoch;
};
#define EPD_REVOKES_MAX 8u

struct epd_group {
    struct epd_group *link;
    struct epd_engine *engine;
    uint64_t id;
    uint32_t generation;
    bool armed;
    bool revoked_all; /* between REVOKE(all) and GENERATION */
    bool rollover_reported;
    struct epd_shape shape;
    uint32_t shape_hash[2]; /* dispatch, combine */
    uint32_t row_bytes, buckets;
    uint64_t timeout_ns, first_timeout_ns;
    uint64_t present; /* ranks that take part */
    uint8_t device[EPD_MAX_RANKS];
    uint8_t expert_rank[EPD_MAX_EXPERTS];
    uint32_t devices; /* bit d: device d has seats */
    uint64_t exchange_chunk[EPD_MAX_DEVICES];
    uint8_t *exchange[EPD_MAX_DEVICES];
    struct epd_exchange_map map;
    struct epd_seat *seat[EPD_MAX_RANKS]; /* owned; NULL: on another device */
    struct epd_epoch epoch[EPD_EPOCH_SLOTS];
    struct epd_failed failed[EPD_FAILED_KEPT];
    uint32_t failed_next;
    uint64_t failed_count, failed_high; /* high: 1 + highest failed epoch */
    uint64_t revoked[EPD_REVOKES_MAX];  /* epochs revoked and not yet failed */
    uint32_t n_revoked;
    struct epd_revoke revoke[EPD_REVOKES_MAX];
    struct epd_cause last_change; /* of the last generation change */
};

static inline uint64_t epd_rank_bit(uint32_t rank)
{
    return (uint64_t)1 << rank;
}
#define EPD_FOR_RANKS(r, mask)                                                                     \
    for (uint64_t m_ = (mask); m_ != 0; m_ &= m_ - 1)                                              \
        for (uint32_t r = (uint32_t)__builtin_ctzll(m_), once_ = 1; once_; once_ = 0)

/* exchange.c: publish to all engines of the group, or read what has come. */
void epd_exchange_publish_dispatch(struct epd_op *op);
void epd_exchange_publish_credit(struct epd_op *op);
void epd_exchange_publish_done(struct epd_op *op, uint64_t ranks);
void epd_exchange_publish_combine(struct epd_op *op);
void epd_exchange_publish_released(struct epd_op *op, uint64_t ranks);
/* The group's record of an epoch, reset when the slot held another one. */
struct epd_epoch *epd_exchange_epoch(struct epd_group *group, uint64_t epoch);
/* Read new records of the epoch into it. True when something new came. */
bool epd_exchange_poll(struct epd_group *group, struct epd_epoch *epoch);
/* Ranks among `ranks` whose done (released) word for the seat and epoch is in. */
uint64_t epd_exchange_done(const struct epd_seat *seat, uint64_t epoch, uint64_t ranks);
uint64_t epd_exchange_released(const struct epd_seat *seat, uint64_t epoch, uint64_t ranks);
/* Another rank's header that contradicts this op; -1 none. */
int epd_exchange_conflict(const struct epd_op *op);

/* route.c: task body; fills the turn's map from the client's ids. Sets op->cause on a bad id. */
void epd_route_run(void *op, uint32_t index);

/* op.c */
bool epd_op_take(struct epd_seat *seat); /* one entry; false: none or no room */
/* After `sleeping` was set: would epd_op_take take one? */
bool epd_op_pending(const struct epd_seat *seat);
void epd_op_set_state(struct epd_op *op, enum epd_op_state state);
void epd_op_finish(struct epd_op *op, const struct epd_cause *cause); /* NULL: success */
void epd_op_start_batch(struct epd_op *op, void (*run)(void *, uint32_t), uint32_t count);
/* True when the batch in flight has ended (clears running, counts busy time). */
bool epd_op_batch_ended(struct epd_op *op);
void epd_op_fail_late(struct epd_op *op, uint32_t phase, uint64_t missing); /* deadline report */
void epd_op_report(struct epd_op *op, const struct epd_cause *cause);
uint32_t epd_op_slices(struct epd_op *op); /* sets slice_tokens from bytes a token */
const struct epd_failed *epd_group_failed(const struct epd_group *group, uint64_t epoch);
bool epd_group_revoked(const struct epd_group *group, uint64_t epoch);
/* End the turn; cause NULL: released in order. */
void epd_turn_close(struct epd_turn *turn, const struct epd_cause *cause);
/* A dispatch of this seat was bad: it and what depends on it end without using up its epoch. */
void epd_op_reject(struct epd_op *op);

/* change.c: complete everything outstanding with `cause`, in ring order, and start at epoch 0. No
 * batch of the seat may be running. */
void epd_seat_abort(struct epd_seat *seat, const struct epd_cause *cause);
/* desc.c */
bool epd_seat_uses_chunk(const struct epd_seat *seat, uint64_t chunk);

/* dispatch.c, combine.c: advance one op; true when it moved. */
bool epd_dispatch_step(struct epd_op *op);
bool epd_combine_step(struct epd_op *op);
bool epd_release_step(struct epd_op *op);
/* Phase and missing ranks of a waiting op. */
uint64_t epd_dispatch_missing(const struct epd_op *op, uint32_t *phase);
uint64_t epd_combine_missing(const struct epd_op *op, uint32_t *phase);

#endif
