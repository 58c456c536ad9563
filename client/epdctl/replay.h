/* `epdctl replay`: recorded routing through the daemon, with every byte checked.
 *
 *   replay_plan.c    options -> plan
 *   replay.c         the coordinator: starts client processes, steps them, replaces the dead
 *   replay_worker.c  a client process: leases its ranks and runs the steps it is told
 *   replay_seat.c    one rank: buffers with guard bytes, ops
 *   replay_step.c    the inputs of a step (trace rows, token pattern)
 *   replay_verify.c  received and combined rows against oracle.h
 *   replay_dump.c    --dump
 *
 * Step s of a layer takes the next R*B rows of that layer, rank r rows [r*B, (r+1)*B) of them. Rank
 * r belongs to client r*C div R. Coordinator and worker talk in datagrams (struct replay_command,
 * replay_result) over a socketpair. */
#ifndef EPDCTL_REPLAY_H
#define EPDCTL_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/epdctl/ctl.h"
#include "client/epdctl/oracle.h"
#include "client/epdctl/trace.h"
#include "proto/layout.h"

#define REPLAY_CLIENTS_MAX EPD_MAX_RANKS
#define REPLAY_LAYERS_MAX TRACE_LAYERS_MAX

struct replay_plan {
    const char *trace_path;
    uint32_t ranks, batch, hidden, clients;
    uint32_t steps; /* a layer; 0: all */
    enum oracle_dtype dtype;
    uint32_t mode, layout;
    bool verify;
    const char *dump;  /* folder, NULL: none */
    const char *group; /* name, NULL: made up */
    uint32_t placement[EPD_MAX_RANKS];
    uint32_t n_placement; /* 0: the daemon's rule */
    int kill_client;      /* -1: none */
    uint32_t kill_step;
    uint32_t n_layers, layers[REPLAY_LAYERS_MAX];
    int worker, fd;     /* of a client process: its number and its end of the socketpair */
    struct trace trace; /* owned */
};

/* Parse and check, load the trace. CTL_OK, or an exit code after the message was printed. */
int replay_plan_parse(struct ctl *ctl, struct replay_plan *plan);
void replay_plan_free(struct replay_plan *plan);
/* Steps of a layer of `rows` rows under this plan. */
uint32_t replay_steps(const struct replay_plan *plan, uint32_t rows);
uint32_t replay_client_of(const struct replay_plan *plan, uint32_t rank);
struct oracle_shape replay_shape(const struct replay_plan *plan);

/* ---- coordinator <-> worker ---- */

enum replay_verb { REPLAY_STEP = 1, REPLAY_QUIT = 2, REPLAY_LOOP = 3 };
struct replay_command {
    uint32_t verb;
    uint32_t layer; /* index in plan->layers */
    uint32_t step;
    uint32_t iterations; /* LOOP: the step's ops again and again, without checks or experts */
};
enum replay_outcome {
    REPLAY_READY = 1,  /* attached and bound */
    REPLAY_DONE = 2,   /* step complete */
    REPLAY_AGAIN = 3,  /* generation changed or epoch failed: re-armed, repeat the step */
    REPLAY_FAILED = 4, /* cannot go on */
};
struct replay_result {
    uint32_t outcome;
    uint32_t mismatches;
    uint64_t tokens, rows, selections;
    uint32_t n_ranks;
    uint32_t dispatch_us10[EPD_MAX_RANKS],
        combine_us10[EPD_MAX_RANKS];                                  /* tenths of us; LOOP: p50 */
    uint32_t dispatch_p99[EPD_MAX_RANKS], combine_p99[EPD_MAX_RANKS]; /* LOOP, tenths of us */
    char text[256]; /* why, or the first mismatch */
};

/* The body of a client process; returns its exit code. */
int replay_worker_run(struct ctl *ctl, const struct replay_plan *plan);

/* ---- a step's inputs ---- */

struct replay_inputs {
    uint32_t layer;                        /* number in the model */
    uint64_t first;                        /* first row of the step in its layer */
    struct oracle_input in[EPD_MAX_RANKS]; /* borrowed from below and from the trace */
    uint8_t *x;                            /* owned, [R*B, H] */
};
bool replay_inputs_init(struct replay_inputs *inputs, const struct replay_plan *plan,
                        const struct trace_layer *layer, uint32_t step);
void replay_inputs_free(struct replay_inputs *inputs);
/* Element of row g of the layer, column h: exact in every dtype. */
float replay_value(uint32_t layer, uint64_t g, uint32_t h);

/* ---- one rank ---- */

struct replay_array {
    uint64_t offset, bytes;
};
struct replay_seat {
    uint32_t rank;
    struct epd_lease *lease;
    struct epd_buffer *buffer;
    struct epd_op *dispatch, *combine;
    uint8_t *base; /* of the buffer */
    struct replay_array x, ids, weights, recv, counts, ranges, src, recv_ids, recv_weights, out;
    uint64_t bytes; /* of the buffer */
    uint64_t started_ns;
    struct epd_ticket ticket;
};
enum epd_status replay_seat_open(struct replay_seat *seat, struct epd *epd, uint64_t group,
                                 const struct replay_plan *plan, uint32_t rank,
                                 struct epd_error *err);
void replay_seat_close(struct replay_seat *seat);
/* Fill everything with guard bytes, then the inputs. */
void replay_seat_fill(struct replay_seat *seat, const struct replay_plan *plan,
                      const struct oracle_input *in);
/* Run the experts on what was received, in place. False: out of memory. */
bool replay_seat_experts(struct replay_seat *seat, const struct replay_plan *plan);

/* ---- checks: number of mismatches; the first is described in text[256] ---- */

uint32_t replay_verify_dispatch(const struct replay_seat *seat, const struct replay_plan *plan,
                                const struct oracle_output *want, char *text);
uint32_t replay_verify_combine(const struct replay_seat *seat, const struct replay_plan *plan,
                               const struct oracle_output *want, uint32_t b, char *text);

enum epd_status replay_dump_dispatch(const struct replay_seat *seat, const struct replay_plan *plan,
                                     uint32_t layer, uint32_t step, struct epd_error *err);
enum epd_status replay_dump_combine(const struct replay_seat *seat, const struct replay_plan *plan,
                                    uint32_t layer, uint32_t step, uint32_t b,
                                    struct epd_error *err);
/* Row of the receive area of the i-th row in order, and who sent it. */
struct replay_row {
    uint64_t at;
    uint32_t source, token;
};
/* Number of received rows, from the counts that the daemon wrote; rows may be NULL. Counts beyond
 * the area's size give UINT32_MAX. */
uint32_t replay_received(const struct replay_seat *seat, const struct replay_plan *plan,
                         struct replay_row *rows);

#endif
