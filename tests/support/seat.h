/* A seat as a client process drives it: lease, buffers under watch, two ops, and the check of every
 * byte against the oracle. Used in the client process only. Functions that can go wrong return
 * false and put a sentence into `text` (SEAT_TEXT bytes). */
#ifndef EPD_TESTS_SEAT_H
#define EPD_TESTS_SEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/epd.h"
#include "tests/support/image.h"
#include "tests/support/workload.h"

#define SEAT_TEXT 480u
#define SEAT_TURNS 4u /* epochs whose inputs and results are kept apart */

enum seat_flags {
    SEAT_STRIDED = 1,    /* rows of x, ids, weights, recv, rows and out have padding behind them */
    SEAT_IMPORT = 2,     /* inputs, out and control in an imported memfd */
    SEAT_IN_PLACE = 4,   /* expert outputs overwrite the received rows */
    SEAT_B_INDIRECT = 8, /* b through the control array */
    SEAT_NOTIFY = 16,
    SEAT_BARE = 32, /* no ranges, no src */
};

struct seat_config {
    struct workload w;
    uint64_t group;
    uint32_t rank, sets, flags;
    uint32_t ring_depth, takeover, has_key;
    uint8_t key[16];
};

/* One epoch of this seat. */
struct seat_turn {
    uint64_t epoch;
    uint32_t step, b, set;
    uint64_t released; /* at least so many epochs are released when the dispatch completes */
    bool used;
};

struct seat {
    struct seat_config c;
    struct epd *epd; /* borrowed */
    struct epd_lease *lease;
    struct epd_buffer *in_buffer, *out_buffer;
    int in_fd; /* SEAT_IMPORT */
    struct epd_op *dispatch, *combine;
    struct image in, out;
    /* offsets in `in` and `out` */
    size_t x, ids, weights, control, result;
    size_t recv, rows, counts, ranges, src, recv_ids, recv_weights;
    size_t x_stride, ids_stride, weights_stride, recv_stride, rows_stride, result_stride;
    struct seat_turn turn[SEAT_TURNS];
    uint64_t combines; /* newest epoch whose combine was submitted, + 1; 0 again after a rearm */
};

/* Lease, allocate, bind. NULL and *err (status) on failure. */
struct seat *seat_open(struct epd *epd, const struct seat_config *config, struct epd_error *err);
/* Release everything through the API. */
void seat_close(struct seat *s);
/* Forget everything, calling nothing (the session is over). */
void seat_forget(struct seat *s);

/* Deviations for tests of bad input. */
struct seat_twist {
    uint32_t tag_xor;
    uint32_t bad_id_set; /* 1: selection `bad_at` of the batch becomes `bad_id` */
    uint32_t bad_at;
    int64_t bad_id;
};
/* Write the inputs of `step` and submit. twist may be NULL. */
enum epd_status seat_dispatch(struct seat *s, uint32_t step, const struct seat_twist *twist,
                              struct epd_ticket *ticket);
/* Compute the expert outputs of `epoch` from the received rows. */
void seat_experts(struct seat *s, uint64_t epoch);
enum epd_status seat_combine(struct seat *s, uint64_t epoch, const struct seat_twist *twist,
                             struct epd_ticket *ticket);
/* The step that `epoch` carries. */
struct seat_turn *seat_turn(struct seat *s, uint64_t epoch);

/* A good completion: its fields, then every byte that it defines. */
bool seat_verify(struct seat *s, const struct epd_result *r, char *text);
/* Every byte of every buffer of this seat, when nothing is in flight. */
bool seat_quiet(struct seat *s, char *text);
/* After a failed op: what it left in the output arrays is undefined; guards still count. */
void seat_forgive(struct seat *s);
uint64_t seat_digest(const struct seat *s);

#endif
