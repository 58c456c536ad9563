/* Loops over the seats of an agent. */
#include <stdio.h>
#include <string.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"
#include "tests/support/proc.h"
#include "tests/support/rng.h"

#define WAIT_MS 20000

struct run {
    struct seat **seat;
    uint32_t seats, first, steps;
    uint64_t epoch0[AGENT_SEATS]; /* epoch of step `first` */
    uint64_t ticket[AGENT_SEATS]; /* newest */
    struct rng rng;
    char *text;
};

static bool wrong(struct run *r, uint32_t i, const char *what, enum epd_status status)
{
    (void)snprintf(r->text, SEAT_TEXT, "rank %u: %s: %s", r->seat[i]->c.rank, what,
                   epd_status_string(status));
    return false;
}

static uint64_t epoch_of(const struct run *r, uint32_t i, uint32_t step)
{
    return r->epoch0[i] + step;
}

static bool dispatch(struct run *r, uint32_t i, uint32_t step)
{
    struct epd_ticket t = {0};
    enum epd_status status = seat_dispatch(r->seat[i], r->first + step, NULL, &t);
    r->ticket[i] = t.ticket;
    return status == EPD_OK || wrong(r, i, "submit dispatch", status);
}

static bool combine(struct run *r, uint32_t i, uint32_t step)
{
    struct epd_ticket t = {0};
    enum epd_status status = seat_combine(r->seat[i], epoch_of(r, i, step), NULL, &t);
    r->ticket[i] = t.ticket;
    return status == EPD_OK || wrong(r, i, "submit combine", status);
}

static bool release(struct run *r, uint32_t i, uint32_t step)
{
    enum epd_status status = epd_release(r->seat[i]->lease, epoch_of(r, i, step), NULL);
    return status == EPD_OK || wrong(r, i, "submit release", status);
}

/* The next completion must be `kind`; verified; experts computed after a dispatch. */
static bool finish(struct run *r, uint32_t i, uint32_t kind)
{
    struct epd_result result;
    const int64_t timeout = (int64_t)slow_ms(WAIT_MS) * 1000000;
    enum epd_status status = epd_wait(r->seat[i]->lease, timeout, &result);
    if (status != EPD_OK)
        return wrong(r, i, kind == EPD_OP_DISPATCH ? "wait dispatch" : "wait", status);
    if (result.kind != kind) {
        (void)snprintf(r->text, SEAT_TEXT, "completion of kind %u, expected %u", result.kind, kind);
        return false;
    }
    if (!seat_verify(r->seat[i], &result, r->text))
        return false;
    if (kind == EPD_OP_DISPATCH)
        seat_experts(r->seat[i], result.epoch);
    return true;
}

static bool all(struct run *r, bool (*f)(struct run *, uint32_t, uint32_t), uint32_t arg)
{
    for (uint32_t i = 0; i < r->seats; i++)
        if (!f(r, i, arg))
            return false;
    return true;
}

static bool all_quiet(struct run *r)
{
    for (uint32_t i = 0; i < r->seats; i++)
        if (!seat_quiet(r->seat[i], r->text))
            return false;
    return true;
}

/* ---- styles ----------------------------------------------------------------------------- */

static bool run_plain(struct run *r)
{
    for (uint32_t n = 0; n < r->steps; n++)
        if (!all(r, dispatch, n) || !all(r, finish, EPD_OP_DISPATCH) || !all(r, combine, n) ||
            !all(r, finish, EPD_OP_COMBINE))
            return false;
    return true;
}

static bool run_pipelined(struct run *r)
{
    if (!all(r, dispatch, 0))
        return false;
    for (uint32_t n = 0; n < r->steps; n++) {
        if (!all(r, finish, EPD_OP_DISPATCH) || !all(r, combine, n))
            return false;
        if (n + 1 < r->steps && !all(r, dispatch, n + 1))
            return false;
        if (!all(r, finish, EPD_OP_COMBINE))
            return false;
    }
    return true;
}

static bool run_two(struct run *r)
{
    for (uint32_t n = 0; n + 1 < r->steps; n += 2)
        if (!all(r, dispatch, n) || !all(r, dispatch, n + 1) || !all(r, finish, EPD_OP_DISPATCH) ||
            !all(r, finish, EPD_OP_DISPATCH) || !all(r, combine, n) || !all(r, combine, n + 1) ||
            !all(r, finish, EPD_OP_COMBINE) || !all(r, finish, EPD_OP_COMBINE))
            return false;
    return true;
}

static bool run_depth2(struct run *r)
{
    const bool two = r->steps > 1;
    if (!all(r, dispatch, 0) || (two && !all(r, dispatch, 1)) || !all(r, finish, EPD_OP_DISPATCH) ||
        (two && !all(r, finish, EPD_OP_DISPATCH)))
        return false;
    /* Ring: D 0, D 1, C 0, D 2, C 1, D 3, C 2, ... */
    for (uint32_t n = 0; n < r->steps; n++) {
        if (!all(r, combine, n) || (n + 2 < r->steps && !all(r, dispatch, n + 2)))
            return false;
        if (n > 0 && n + 1 < r->steps && !all(r, finish, EPD_OP_DISPATCH))
            return false;
        if (!all(r, finish, EPD_OP_COMBINE))
            return false;
    }
    return true;
}

static bool wait_ticket(struct run *r, uint32_t i, uint32_t kind)
{
    struct epd_result result;
    const int64_t timeout = (int64_t)slow_ms(WAIT_MS) * 1000000;
    enum epd_status status = epd_wait_ticket(r->seat[i]->lease, r->ticket[i], timeout, &result);
    if (status != EPD_OK)
        return wrong(r, i, "wait for a ticket", status);
    if (result.ticket != r->ticket[i] || result.kind != kind)
        return wrong(r, i, "another ticket", EPD_EINTERNAL);
    if (!seat_verify(r->seat[i], &result, r->text))
        return false;
    if (kind == EPD_OP_DISPATCH)
        seat_experts(r->seat[i], result.epoch);
    return true;
}

static bool run_staged(struct run *r)
{
    for (uint32_t n = 0; n < r->steps; n++) {
        if (!all(r, dispatch, n))
            return false;
        sleep_ms((int)rng_below(&r->rng, 3));
        if (!all(r, wait_ticket, EPD_OP_DISPATCH) || !all(r, combine, n))
            return false;
        sleep_ms((int)rng_below(&r->rng, 3));
        if (!all(r, wait_ticket, EPD_OP_COMBINE))
            return false;
    }
    return true;
}

static bool run_release(struct run *r)
{
    for (uint32_t n = 0; n < r->steps; n++)
        if (!all(r, dispatch, n) || !all(r, finish, EPD_OP_DISPATCH) || !all(r, release, n) ||
            !all(r, finish, EPD_OP_RELEASE))
            return false;
    return true;
}

/* ---- actors ----------------------------------------------------------------------------- */

struct actor {
    uint32_t submitted, combined; /* dispatches submitted, combines completed */
    bool started;
};

static bool actor_event(struct run *r, uint32_t i, struct actor *a, const struct epd_result *result)
{
    if (!seat_verify(r->seat[i], result, r->text))
        return false;
    if (result->kind == EPD_OP_COMBINE) {
        a->combined++;
        return a->submitted > a->combined || a->submitted == r->steps ||
               dispatch(r, i, a->submitted++);
    }
    seat_experts(r->seat[i], result->epoch);
    if (!combine(r, i, (uint32_t)(result->epoch - r->epoch0[i])))
        return false;
    /* Sometimes the next dispatch stands in the ring behind this combine. */
    if (a->submitted < r->steps && rng_below(&r->rng, 2) == 0)
        return dispatch(r, i, a->submitted++);
    return true;
}

static bool actor_turn(struct run *r, uint32_t i, struct actor *a, bool *progress)
{
    struct epd_result result;
    if (a->combined == r->steps)
        return true;
    if (!a->started) {
        a->started = true;
        *progress = true;
        return dispatch(r, i, a->submitted++);
    }
    enum epd_status status = epd_poll(r->seat[i]->lease, &result);
    if (status == EPD_EAGAIN)
        return true;
    *progress = true;
    if (status != EPD_OK)
        return wrong(r, i, "poll", status);
    return actor_event(r, i, a, &result);
}

static bool run_actors(struct run *r)
{
    struct actor actor[AGENT_SEATS] = {0};
    uint64_t start = now_ns();
    uint32_t left = r->seats;
    while (left > 0) {
        bool progress = false;
        uint32_t from = rng_below(&r->rng, r->seats);
        left = 0;
        for (uint32_t j = 0; j < r->seats; j++) {
            uint32_t i = (from + j) % r->seats;
            if (!actor_turn(r, i, &actor[i], &progress))
                return false;
            left += actor[i].combined < r->steps;
        }
        if (!progress)
            sleep_ms(1);
        if (ms_since(start) > slow_ms(WAIT_MS))
            return wrong(r, from, "actors do not finish", EPD_ETIMEDOUT);
    }
    return true;
}

AGENT_COMMAND(cmd_run)
{
    static bool (*const styles[RUN_STYLES])(struct run *) = {
        [RUN_PLAIN] = run_plain,   [RUN_PIPELINED] = run_pipelined, [RUN_TWO] = run_two,
        [RUN_DEPTH2] = run_depth2, [RUN_STAGED] = run_staged,       [RUN_RELEASE] = run_release,
        [RUN_ACTORS] = run_actors,
    };
    struct run r = {
        .seat = &st->seat[cmd->slot],
        .seats = (uint32_t)cmd->a[1],
        .first = cmd->step,
        .steps = (uint32_t)cmd->a[2],
        .rng = rng_make(cmd->a[3], (uint64_t)cmd->slot, cmd->a[0]),
        .text = reply->text,
    };
    if (r.seats == 0) /* all there are */
        while (r.seats < AGENT_SEATS - cmd->slot && r.seat[r.seats])
            r.seats++;
    for (uint32_t i = 0; i < r.seats; i++)
        r.epoch0[i] = epd_lease_epoch(r.seat[i]->lease);
    reply->bad = r.steps > 0 && (!styles[cmd->a[0]](&r) || !all_quiet(&r));
    for (uint32_t i = 0; i < r.seats; i++)
        reply->v[0] = rng_mix(reply->v[0] ^ seat_digest(r.seat[i]));
}
