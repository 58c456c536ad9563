#include "client/epdctl/replay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A client process: everything it does with the daemon goes through the public API. */

struct worker {
    struct ctl *ctl;
    const struct replay_plan *plan;
    struct epd *epd;
    uint32_t n_seats;
    struct replay_seat seats[EPD_MAX_RANKS];
    struct replay_inputs inputs;
    struct replay_result result;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- outcomes ---- */

static bool fail(struct worker *w, const char *what, const char *message)
{
    w->result.outcome = REPLAY_FAILED;
    (void)snprintf(w->result.text, sizeof(w->result.text), "client %d, %s: %s", w->plan->worker,
                   what, message);
    return false;
}

/* A completion that is not OK: the step is repeated when only its epoch or generation is over. */
static bool not_done(struct worker *w, const struct epd_result *r)
{
    char text[256];
    const enum epd_scope scope = epd_status_scope_of(r->status);
    if (scope != EPD_SCOPE_GROUP && scope != EPD_SCOPE_EPOCH)
        return fail(w, "op failed", epd_result_describe(r, text, sizeof(text)));
    w->result.outcome = REPLAY_AGAIN;
    (void)snprintf(w->result.text, sizeof(w->result.text), "%s",
                   epd_result_describe(r, text, sizeof(text)));
    return false;
}

/* Drain what is in flight and learn the new generation. */
static bool rearm_all(struct worker *w)
{
    struct epd_error err = {.status = EPD_OK};
    for (uint32_t i = 0; i < w->n_seats; i++) {
        struct epd_result r;
        while (epd_poll(w->seats[i].lease, &r) == EPD_OK) {
        }
        if (epd_rearm(w->seats[i].lease, &err) != EPD_OK)
            return fail(w, "re-arm", err.message);
        while (epd_poll(w->seats[i].lease, &r) == EPD_OK) {
        }
    }
    return true;
}

/* ---- one step ---- */

static const struct oracle_input *input_of(const struct worker *w, uint32_t i)
{
    return &w->inputs.in[w->seats[i].rank];
}

static bool submit_all(struct worker *w, bool combine)
{
    for (uint32_t i = 0; i < w->n_seats; i++) {
        struct replay_seat *s = &w->seats[i];
        struct epd_submit submit = EPD_SUBMIT_INIT;
        submit.b = input_of(w, i)->b;
        submit.tag = w->inputs.layer;
        submit.epoch = s->ticket.epoch;
        s->started_ns = now_ns();
        const enum epd_status status = combine ? epd_combine(s->combine, &submit, &s->ticket)
                                               : epd_dispatch(s->dispatch, &submit, &s->ticket);
        if (epd_status_scope_of(status) == EPD_SCOPE_GROUP) {
            w->result.outcome = REPLAY_AGAIN; /* noticed before an op of ours was in flight */
            return false;
        }
        if (status != EPD_OK)
            return fail(w, combine ? "combine" : "dispatch", epd_status_describe(status));
    }
    return true;
}

static bool wait_all(struct worker *w, uint32_t *us10)
{
    bool ok = true;
    for (uint32_t i = 0; i < w->n_seats; i++) {
        struct epd_result r;
        const enum epd_status status =
            epd_wait_ticket(w->seats[i].lease, w->seats[i].ticket.ticket, -1, &r);
        if (status != EPD_OK)
            return fail(w, "wait", epd_status_describe(status));
        us10[i] = (uint32_t)((now_ns() - w->seats[i].started_ns) / 100u);
        if (r.status != EPD_OK && ok)
            ok = not_done(w, &r);
    }
    return ok;
}

static bool check_seat(struct worker *w, uint32_t i, const struct oracle_output *want, bool combine)
{
    char text[256] = "";
    const struct replay_seat *s = &w->seats[i];
    const uint32_t n = combine ? replay_verify_combine(s, w->plan, want, input_of(w, i)->b, text)
                               : replay_verify_dispatch(s, w->plan, want, text);
    if (n > 0 && w->result.mismatches == 0)
        memcpy(w->result.text, text, sizeof(text));
    w->result.mismatches += n;
    return true;
}

static bool dump_seat(struct worker *w, uint32_t i, uint32_t step, bool combine)
{
    struct epd_error err = {.status = EPD_OK};
    const struct replay_seat *s = &w->seats[i];
    if (w->plan->dump == NULL)
        return true;
    const enum epd_status status =
        combine ? replay_dump_combine(s, w->plan, w->inputs.layer, step, input_of(w, i)->b, &err)
                : replay_dump_dispatch(s, w->plan, w->inputs.layer, step, &err);
    return status == EPD_OK || fail(w, "dump", err.message);
}

static void count(struct worker *w)
{
    const uint32_t k = w->plan->trace.topk;
    for (uint32_t i = 0; i < w->n_seats; i++) {
        const struct oracle_input *in = input_of(w, i);
        w->result.tokens += in->b;
        for (uint64_t j = 0; j < (uint64_t)in->b * k; j++)
            w->result.selections += in->ids[j] >= 0;
        const uint32_t rows = replay_received(&w->seats[i], w->plan, NULL);
        w->result.rows += rows == UINT32_MAX ? 0 : rows;
    }
}

static bool after_dispatch(struct worker *w, uint32_t step, struct oracle_output *want)
{
    const struct oracle_shape shape = replay_shape(w->plan);
    for (uint32_t i = 0; i < w->n_seats; i++) {
        if (w->plan->verify) {
            if (!oracle_expect(&shape, w->inputs.in, oracle_scale_expert, w->seats[i].rank,
                               &want[i]))
                return fail(w, "oracle", "out of memory");
            (void)check_seat(w, i, &want[i], false);
        }
        if (!dump_seat(w, i, step, false))
            return false;
        if (!replay_seat_experts(&w->seats[i], w->plan))
            return fail(w, "experts", "out of memory");
    }
    return true;
}

static bool run_ops(struct worker *w, uint32_t step, struct oracle_output *want)
{
    for (uint32_t i = 0; i < w->n_seats; i++)
        replay_seat_fill(&w->seats[i], w->plan, input_of(w, i));
    if (!submit_all(w, false) || !wait_all(w, w->result.dispatch_us10))
        return false;
    count(w);
    if (!after_dispatch(w, step, want))
        return false;
    if (!submit_all(w, true) || !wait_all(w, w->result.combine_us10))
        return false;
    for (uint32_t i = 0; i < w->n_seats; i++) {
        if (w->plan->verify)
            (void)check_seat(w, i, &want[i], true);
        if (!dump_seat(w, i, step, true))
            return false;
    }
    return true;
}

static void run_step(struct worker *w, const struct replay_command *command)
{
    struct oracle_output want[EPD_MAX_RANKS];
    const struct trace_layer *layer = trace_find(&w->plan->trace, w->plan->layers[command->layer]);
    memset(want, 0, sizeof(want));
    memset(&w->result, 0, sizeof(w->result));
    w->result.outcome = REPLAY_DONE;
    w->result.n_ranks = w->n_seats;
    if (!replay_inputs_init(&w->inputs, w->plan, layer, command->step)) {
        (void)fail(w, "inputs", "out of memory");
        return;
    }
    if (!run_ops(w, command->step, want) && w->result.outcome == REPLAY_AGAIN)
        (void)rearm_all(w);
    for (uint32_t i = 0; i < w->n_seats; i++)
        oracle_output_free(&want[i]);
    replay_inputs_free(&w->inputs);
}

/* ---- the timed loop of `epdctl bench` ---- */

#define WARM_UP 10u

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void percentiles(uint32_t *samples, uint32_t n, uint32_t *p50, uint32_t *p99)
{
    qsort(samples, n, sizeof(*samples), by_value);
    *p50 = samples[n / 2];
    if (p99 != NULL)
        *p99 = samples[(uint64_t)n * 99 / 100];
}

/* samples: [2, seats, iterations] */
static bool loop_ops(struct worker *w, uint32_t iterations, uint32_t *samples)
{
    for (uint32_t i = 0; i < iterations + WARM_UP; i++) {
        const uint32_t at = i < WARM_UP ? 0 : i - WARM_UP;
        for (uint32_t combine = 0; combine < 2; combine++) {
            uint32_t us10[EPD_MAX_RANKS];
            if (!submit_all(w, combine != 0) || !wait_all(w, us10))
                return false;
            for (uint32_t s = 0; s < w->n_seats; s++)
                samples[((uint64_t)combine * w->n_seats + s) * iterations + at] = us10[s];
        }
    }
    return true;
}

static void run_loop(struct worker *w, const struct replay_command *command)
{
    const uint32_t n = command->iterations;
    const struct trace_layer *layer = trace_find(&w->plan->trace, w->plan->layers[command->layer]);
    memset(&w->result, 0, sizeof(w->result));
    w->result.outcome = REPLAY_DONE;
    w->result.n_ranks = w->n_seats;
    uint32_t *samples = calloc(2ull * w->n_seats * n + 1, sizeof(*samples));
    if (samples == NULL || !replay_inputs_init(&w->inputs, w->plan, layer, command->step)) {
        free(samples);
        (void)fail(w, "loop", "out of memory");
        return;
    }
    for (uint32_t i = 0; i < w->n_seats; i++)
        replay_seat_fill(&w->seats[i], w->plan, input_of(w, i));
    if (loop_ops(w, n, samples)) {
        count(w);
        for (uint32_t s = 0; s < w->n_seats; s++) {
            percentiles(samples + (uint64_t)s * n, n, &w->result.dispatch_us10[s],
                        &w->result.dispatch_p99[s]);
            percentiles(samples + (uint64_t)(w->n_seats + s) * n, n, &w->result.combine_us10[s],
                        &w->result.combine_p99[s]);
        }
    }
    replay_inputs_free(&w->inputs);
    free(samples);
}

/* ---- attach ---- */

static bool attach(struct worker *w)
{
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd_group_info group = EPD_GROUP_INFO_INIT;
    struct epd_error err = {.status = EPD_OK};
    options.socket = w->ctl->socket;
    options.name = "epdctl replay";
    options.timeout_ns = 20 * 1000000000ll;
    if (epd_open(&options, &w->epd, &err) != EPD_OK)
        return fail(w, "attach", err.message);
    if (epd_group_open(w->epd, w->plan->group, &group, &err) != EPD_OK)
        return fail(w, "group", err.message);
    for (uint32_t r = 0; r < w->plan->ranks; r++) {
        if (replay_client_of(w->plan, r) != (uint32_t)w->plan->worker)
            continue;
        if (replay_seat_open(&w->seats[w->n_seats], w->epd, group.id, w->plan, r, &err) != EPD_OK)
            return fail(w, "seat", err.message);
        w->n_seats++;
    }
    w->result.outcome = REPLAY_READY;
    return true;
}

static bool send_result(const struct worker *w)
{
    return send(w->plan->fd, &w->result, sizeof(w->result), MSG_NOSIGNAL) ==
           (ssize_t)sizeof(w->result);
}

int replay_worker_run(struct ctl *ctl, const struct replay_plan *plan)
{
    struct worker *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return CTL_FAILED;
    w->ctl = ctl;
    w->plan = plan;
    bool ok = attach(w);
    ok = send_result(w) && ok;
    while (ok) {
        struct replay_command command;
        ssize_t n = recv(plan->fd, &command, sizeof(command), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof(command) || command.verb == REPLAY_QUIT)
            break; /* told to quit, or the coordinator is gone */
        if (command.verb == REPLAY_LOOP)
            run_loop(w, &command);
        else
            run_step(w, &command);
        ok = send_result(w) && w->result.outcome != REPLAY_FAILED;
    }
    for (uint32_t i = 0; i < w->n_seats; i++)
        replay_seat_close(&w->seats[i]);
    epd_close(w->epd);
    free(w);
    return ok ? CTL_OK : CTL_FAILED;
}
