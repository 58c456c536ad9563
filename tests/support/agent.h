/* A client process on a string. The test forks agents and calls functions in them one at a time, so
 * that a test reads like a script while every client is a real process that can be killed at any
 * instruction. agent_post and agent_collect let several agents work at once.
 * Command functions run in the agent (they are in the same image, so a pointer is enough); a test
 * may bring its own. Replies carry the agent's CLOCK_MONOTONIC time. */
#ifndef EPD_TESTS_AGENT_H
#define EPD_TESTS_AGENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/epd.h"
#include "tests/support/harness.h"
#include "tests/support/seat.h"

#define AGENT_SEATS 64u
#define AGENT_MS 30000 /* deadline of a call, scaled */

struct agent {
    pid_t pid; /* 0: not running */
    int fd;
};

struct group_spec {
    char name[64];
    struct epd_shape shape;
    uint32_t timeout_ms, first_timeout_ms, ephemeral, allow_absent, has_key, has_placement;
    uint8_t key[16];
    uint32_t placement[EPD_MAX_RANKS];
};

struct agent_cmd;
struct agent_reply;
/* In the agent. */
struct agent_state {
    char socket[96];
    struct epd *epd;
    struct seat *seat[AGENT_SEATS];
    pid_t sleeper;
    int kept_fd;
};
typedef void (*agent_fn)(struct agent_state *st, const struct agent_cmd *cmd,
                         struct agent_reply *reply);
struct agent_cmd {
    agent_fn fn;
    uint32_t slot, step;
    uint64_t a[6];
    union {
        struct seat_config seat;
        struct group_spec group;
        struct seat_twist twist;
        char text[256];
    } u;
};
struct agent_device {
    uint32_t pid, restarts, seats;
    uint64_t incarnation, chunks, chunk_bytes, ops;
    char state[16];
};
struct agent_reply {
    enum epd_status status; /* of the call */
    uint32_t bad;           /* 1: the agent found something wrong; text says what */
    uint64_t ns;            /* when the command was done */
    uint64_t v[8];
    struct epd_result result;
    struct epd_error err;
    struct agent_device device[4];
    char text[SEAT_TEXT];
};

/* Fork an agent for the daemon (not attached yet). */
void agent_start(struct agent *a, const struct daemon *d);
/* Let it leave in order (session closed). */
void agent_end(struct agent *a);
/* SIGKILL and reap. Returns the moment of the kill. */
uint64_t agent_kill(struct agent *a);
void agent_signal(const struct agent *a, int sig);
/* Teardown: kill every agent. */
void agents_kill_all(void);

void agent_post(const struct agent *a, const struct agent_cmd *cmd);
/* Fails the test when there is no reply in ms (scaled), or when it says `bad`. */
struct agent_reply agent_collect(const struct agent *a, int ms);
struct agent_reply agent_call(const struct agent *a, const struct agent_cmd *cmd);

/* ---- calls; those without a result fail the test unless the status is OK ---- */

void agent_open(const struct agent *a);
void agent_close(const struct agent *a);
struct agent_reply agent_create(const struct agent *a, const struct group_spec *spec);
/* Lease, buffers and ops for seat config->rank, in slot. */
void agent_seat(const struct agent *a, uint32_t slot, const struct seat_config *config);
struct agent_reply agent_try_seat(const struct agent *a, uint32_t slot,
                                  const struct seat_config *config);
/* Submit step's dispatch / combine of epoch; status of the submission; v[0] ticket, v[1] epoch. */
struct agent_reply agent_dispatch(const struct agent *a, uint32_t slot, uint32_t step);
struct agent_reply agent_dispatch_twisted(const struct agent *a, uint32_t slot, uint32_t step,
                                          const struct seat_twist *twist);
struct agent_reply agent_combine_twisted(const struct agent *a, uint32_t slot, uint64_t epoch,
                                         const struct seat_twist *twist);
struct agent_reply agent_combine(const struct agent *a, uint32_t slot, uint64_t epoch);
struct agent_reply agent_release(const struct agent *a, uint32_t slot, uint64_t epoch);
/* Wait for the next completion: status of epd_wait, result. */
struct agent_reply agent_wait(const struct agent *a, uint32_t slot, int timeout_ms);
void agent_post_wait(const struct agent *a, uint32_t slot, int timeout_ms);
/* Wait, expect OK, verify every byte; after a dispatch compute the experts too. */
void agent_wait_good(const struct agent *a, uint32_t slot);
/* Wait, expect this status in the result; returns it. Output arrays are forgiven. */
struct epd_result agent_wait_status(const struct agent *a, uint32_t slot, enum epd_status status);
void agent_rearm(const struct agent *a, uint32_t slot);
void agent_quiet(const struct agent *a, uint32_t slot);

/* ---- runs: loops over all seats of an agent, every byte verified ---- */

enum run_style {
    RUN_PLAIN = 0, /* D all, wait, C all, wait */
    RUN_PIPELINED, /* D n+1 queued behind C n before C n is waited for */
    RUN_TWO,       /* D n, D n+1, C n, C n+1; needs 2 sets */
    RUN_DEPTH2,    /* D 0, D 1, C 0, D 2, C 1, D 3, ...; needs 2 sets */
    RUN_STAGED,    /* submit, do something else, wait by ticket */
    RUN_RELEASE,   /* release instead of combine */
    RUN_ACTORS,    /* every seat for itself, polled in random order */
    RUN_STYLES
};
/* Steps [first, first + steps) on seats of slots [slot, slot + seats). */
struct run_args {
    uint32_t style, slot, seats, first, steps;
    uint64_t seed;
};
void agent_post_run(const struct agent *a, const struct run_args *args);
/* The same on several agents at once; all must be good. */
void agents_run(const struct agent *a, uint32_t agents, const struct run_args *args);

/* Work until an op or a call fails, or `steps` are done (0: for ever). Reply: status of the call,
 * result, ns = when it was known, v[0] good ops, v[2] completions drained behind it. Guards
 * checked. */
void agent_post_until_lost(const struct agent *a, uint32_t slot, uint32_t first, bool verify,
                           uint64_t steps);

/* Daemon status through an agent: v[0] pid, v[1] sessions, v[2] groups, v[3] devices; device[]. */
struct agent_reply agent_status(const struct agent *a);

#endif
