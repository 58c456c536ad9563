/* The ring ABI between a client and an engine: one ring area per lease, in a chunk of the
 * client's session. Everything here is written by an untrusted client or read by one; the engine
 * copies first, validates second, uses third.
 *
 * Area layout (epd_ring_bytes(depth) bytes, 4096-aligned):
 *     struct epd_ring_header | struct epd_entry [depth] | struct epd_completion [depth]
 *
 * Submission i (from 0, the "ticket") goes to entry slot i % depth; the writer fills the entry and
 * then stores seq = i + 1 (sequentially consistent). The engine takes slots in order. Completion i
 * answers submission i, in slot i % depth, with seq = i + 1 (release), then header.completed =
 * i + 1. A client may have at most depth submissions whose completions it has not consumed.
 *
 * Wake-up of the engine: after the seq store the client loads status page `sleeping`
 * (sequentially consistent); if 1 it writes 8 bytes to the session's doorbell eventfd.
 * Wake-up of the client: it sets header.waiters = 1, re-reads header.completed, then FUTEX_WAITs
 * (shared) on the low 32 bits of header.completed; the engine wakes after a completion when it
 * sees waiters != 0. Waits are sliced (<= 100 ms) to notice a dead daemon.
 */
#ifndef EPD_PROTO_RING_H
#define EPD_PROTO_RING_H

#include <stddef.h>
#include <stdint.h>

#define EPD_RING_MAGIC 0x31474e4952445045ull /* "EPDRING1" little endian */
#define EPD_RING_DEPTH_DEFAULT 256u
#define EPD_RING_DEPTH_MIN 4u
#define EPD_RING_DEPTH_MAX 4096u

enum epd_op_kind {
    EPD_OP_DISPATCH = 1,
    EPD_OP_COMBINE = 2,
    EPD_OP_POST_RECEIVE = 3, /* reserved: completes EPD_EUNSUPPORTED */
    EPD_OP_RELEASE = 4,      /* the output of dispatch `epoch` may be overwritten */
};

enum epd_entry_flags {
    EPD_ENTRY_B_INDIRECT = 1, /* b is read from control + b_offset (u32) when the op is taken */
    EPD_ENTRY_NOTIFY = 2,     /* control + notify_offset (u64) is set to 1 after the completion */
};

/* 128 bytes. Writer: the client. `control`, rows and sets refer to the op descriptor. */
struct epd_entry {
    uint16_t abi; /* EPD_ABI_VERSION */
    uint8_t kind; /* enum epd_op_kind */
    uint8_t flags;
    uint32_t tag; /* user tag; equal on all ranks; comes back with the completion */
    uint32_t desc_index;
    uint32_t desc_generation;
    uint64_t epoch;            /* group epoch of the dispatch and of its combine, from 0 */
    uint32_t group_generation; /* of the lease; another one completes EPD_EGENERATION */
    uint32_t b;                /* tokens, 0..B */
    uint64_t b_offset;         /* byte offset in the descriptor's control buffer */
    uint64_t notify_offset;    /* byte offset in the descriptor's control buffer */
    uint64_t in_row;           /* dispatch: first row of x, ids, weights; combine: of weights */
    uint64_t out_row;          /* combine: first row of out; dispatch: 0 */
    uint64_t set;              /* receive set: recv and its metadata (dispatch), rows (combine) */
    uint64_t reserved[6];      /* 0 */
    uint64_t seq;              /* ticket + 1, stored last */
};

/* Where an op was when it failed, and for late ranks what was missing. */
enum epd_phase {
    EPD_PHASE_NONE = 0,
    EPD_PHASE_VALIDATE, /* entry, ids */
    EPD_PHASE_HOLD,     /* output overlaps unreleased memory */
    EPD_PHASE_COUNTS,   /* waiting for the ranks' counts */
    EPD_PHASE_CREDIT,   /* waiting for a rank's receive credit */
    EPD_PHASE_ROWS,     /* dispatch: waiting for rows */
    EPD_PHASE_READY,    /* combine: waiting for a rank's expert rows */
    EPD_PHASE_RELEASE,  /* waiting for peers to finish reading */
};

/* Which field of an entry or descriptor was bad (EPD_EINVAL and friends). */
enum epd_field {
    EPD_FIELD_NONE = 0,
    EPD_FIELD_ABI,
    EPD_FIELD_KIND,
    EPD_FIELD_FLAGS,
    EPD_FIELD_DESC,
    EPD_FIELD_EPOCH,
    EPD_FIELD_GENERATION,
    EPD_FIELD_B,
    EPD_FIELD_B_OFFSET,
    EPD_FIELD_NOTIFY_OFFSET,
    EPD_FIELD_IN_ROW,
    EPD_FIELD_OUT_ROW,
    EPD_FIELD_SET,
    EPD_FIELD_IDS, /* value = (token * K + k) << 32 | low 32 bits of the id */
    EPD_FIELD_RESERVED,
};

enum epd_completion_flags {
    EPD_COMPLETION_EPOCH_CONSUMED = 1, /* the epoch is over for this seat; use the next one */
};

/* 64 bytes. Writer: the engine. */
struct epd_completion {
    uint64_t epoch;
    uint64_t released_epoch; /* rows of epochs < this are free (count of released epochs) */
    uint32_t tag;
    uint8_t kind;
    uint8_t flags;
    uint8_t phase; /* enum epd_phase, on error */
    uint8_t field; /* enum epd_field, on error */
    int32_t status;
    int16_t rank;       /* the rank at fault, or -1 */
    int16_t other_rank; /* EPD_EMISMATCH: the second rank, else -1 */
    uint32_t generation;
    uint32_t rows;    /* dispatch: rows received; combine: tokens combined */
    uint32_t wait_us; /* of the op's time, spent waiting for other ranks */
    uint32_t work_us; /* taken -> completed */
    uint64_t value;   /* the bad value of `field` */
    uint64_t seq;     /* ticket + 1, stored last (release) */
};

/* One cache line per writer. */
struct epd_ring_header {
    /* constants, written by the engine before the client maps the area */
    uint64_t magic;
    uint32_t abi;
    uint32_t depth;
    uint8_t pad0[48];
    /* writer: client */
    uint32_t waiters __attribute__((aligned(64))); /* 1 while a thread may FUTEX_WAIT */
    uint8_t pad1[60];
    /* writer: engine */
    uint64_t completed __attribute__((aligned(64))); /* completions posted; futex word: low half */
    uint64_t released_epoch;
    uint32_t generation; /* current generation of the group */
    uint32_t reserved;
    uint8_t pad2[40];
};

#ifdef __cplusplus
#define EPD_STATIC_ASSERT(c, m) static_assert(c, m)
#else
#define EPD_STATIC_ASSERT(c, m) _Static_assert(c, m)
#endif
EPD_STATIC_ASSERT(sizeof(struct epd_entry) == 128, "entry is 128 bytes");
EPD_STATIC_ASSERT(offsetof(struct epd_entry, seq) == 120, "seq is the last word");
EPD_STATIC_ASSERT(sizeof(struct epd_completion) == 64, "completion is 64 bytes");
EPD_STATIC_ASSERT(offsetof(struct epd_completion, seq) == 56, "seq is the last word");
EPD_STATIC_ASSERT(sizeof(struct epd_ring_header) == 192, "header is three cache lines");

#define EPD_RING_HEADER_BYTES 256u

static inline size_t epd_ring_bytes(uint32_t depth)
{
    size_t n = EPD_RING_HEADER_BYTES +
               (size_t)depth * (sizeof(struct epd_entry) + sizeof(struct epd_completion));
    return (n + 4095u) & ~(size_t)4095u;
}
static inline struct epd_ring_header *epd_ring_header_at(void *area)
{
    return (struct epd_ring_header *)area;
}
static inline struct epd_entry *epd_ring_entry(void *area, uint32_t depth, uint64_t ticket)
{
    return (struct epd_entry *)((char *)area + EPD_RING_HEADER_BYTES) + (ticket & (depth - 1u));
}
static inline struct epd_completion *epd_ring_completion(void *area, uint32_t depth,
                                                         uint64_t ticket)
{
    char *base = (char *)area + EPD_RING_HEADER_BYTES + (size_t)depth * sizeof(struct epd_entry);
    return (struct epd_completion *)base + (ticket & (depth - 1u));
}

#endif
