#include "client/epdctl/replay_run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/epdctl/fail.h"

#define ATTEMPTS 8 /* of one step */
/* The victim's op is in flight by then, and waits for a rank that is held back. */
#define KILL_AFTER_MS 50
#define REPLY_TIMEOUT_S 180

struct client {
    pid_t pid; /* 0: none */
    int fd;
    bool busy; /* a command is out */
    struct replay_result result;
};

struct run {
    struct ctl *ctl;
    const struct replay_plan *plan;
    struct replay_report *report;
    struct epd *epd; /* owns the group */
    uint64_t group;
    char group_name[64];
    bool killed;
    struct client clients[REPLAY_CLIENTS_MAX];
    struct epd_error *err;
};

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* ---- client processes ---- */

static void exec_client(const struct run *run, uint32_t index, int fd)
{
    char *argv[64], number[16], fd_text[16];
    int n = 0;
    (void)snprintf(number, sizeof(number), "%u", index);
    (void)snprintf(fd_text, sizeof(fd_text), "%d", fd);
    argv[n++] = (char *)(uintptr_t) "epdctl";
    argv[n++] = (char *)(uintptr_t) "replay-worker";
    if (run->ctl->socket != NULL) {
        argv[n++] = (char *)(uintptr_t) "--socket";
        argv[n++] = (char *)(uintptr_t)run->ctl->socket;
    }
    for (int i = 1; i < run->ctl->argc && n < 50; i++)
        argv[n++] = run->ctl->argv[i];
    argv[n++] = (char *)(uintptr_t) "--group";
    argv[n++] = (char *)(uintptr_t)run->group_name;
    argv[n++] = (char *)(uintptr_t) "--worker";
    argv[n++] = number;
    argv[n++] = (char *)(uintptr_t) "--fd";
    argv[n++] = fd_text;
    argv[n] = NULL;
    (void)execv("/proc/self/exe", argv);
    _exit(127);
}

static enum epd_status start_client(struct run *run, uint32_t index)
{
    int pair[2];
    struct client *c = &run->clients[index];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return ctl_fail(run->err, EPD_ESYS, "socketpair: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        int fd = dup(pair[1]); /* without close-on-exec */
        exec_client(run, index, fd);
    }
    (void)close(pair[1]);
    if (pid < 0) {
        (void)close(pair[0]);
        return ctl_fail(run->err, EPD_ESYS, "fork: %s", strerror(errno));
    }
    *c = (struct client){.pid = pid, .fd = pair[0], .busy = true};
    return EPD_OK;
}

static void reap(struct client *c)
{
    if (c->pid == 0)
        return;
    (void)close(c->fd);
    (void)waitpid(c->pid, NULL, 0);
    *c = (struct client){.fd = -1};
}

/* ---- commands and results ---- */

static void command(struct client *c, uint32_t layer, uint32_t step)
{
    const struct replay_command m = {.verb = REPLAY_STEP, .layer = layer, .step = step};
    c->busy = send(c->fd, &m, sizeof(m), MSG_NOSIGNAL) == (ssize_t)sizeof(m);
    if (!c->busy)
        c->result.outcome = 0;
}

/* Wait until no client is busy; one that dies is reaped (pid 0). */
static enum epd_status collect(struct run *run)
{
    const uint64_t deadline = now_ms() + REPLY_TIMEOUT_S * 1000u;
    for (uint32_t i = 0; i < run->plan->clients; i++) {
        struct client *c = &run->clients[i];
        while (c->pid != 0 && c->busy) {
            struct pollfd p = {.fd = c->fd, .events = POLLIN};
            const uint64_t now = now_ms();
            if (now >= deadline)
                return ctl_fail(run->err, EPD_ETIMEDOUT, "client %u did not answer within %d s", i,
                                REPLY_TIMEOUT_S);
            if (poll(&p, 1, (int)(deadline - now)) <= 0)
                continue;
            const ssize_t n = recv(c->fd, &c->result, sizeof(c->result), 0);
            if (n == (ssize_t)sizeof(c->result))
                c->busy = false;
            else if (n >= 0 || errno != EINTR)
                reap(c);
        }
    }
    return EPD_OK;
}

/* Start what is missing; every client is ready afterwards. */
static enum epd_status start_missing(struct run *run)
{
    enum epd_status status = EPD_OK;
    for (uint32_t i = 0; status == EPD_OK && i < run->plan->clients; i++)
        if (run->clients[i].pid == 0)
            status = start_client(run, i);
    if (status == EPD_OK)
        status = collect(run);
    for (uint32_t i = 0; status == EPD_OK && i < run->plan->clients; i++) {
        const struct client *c = &run->clients[i];
        if (c->pid == 0)
            status = ctl_fail(run->err, EPD_EINTERNAL, "client %u died while it started", i);
        else if (c->result.outcome == REPLAY_FAILED)
            status = ctl_fail(run->err, EPD_EINTERNAL, "%s", c->result.text);
    }
    return status;
}

/* ---- one step ---- */

static void kill_in_flight(struct run *run, uint32_t layer, uint32_t step)
{
    const uint32_t victim = (uint32_t)run->plan->kill_client;
    const uint32_t held = victim == 0 ? 1 : 0; /* its absence keeps the others' ops in flight */
    for (uint32_t i = 0; i < run->plan->clients; i++)
        if (i != held)
            command(&run->clients[i], layer, step);
    (void)poll(NULL, 0, KILL_AFTER_MS);
    (void)kill(run->clients[victim].pid, SIGKILL);
    command(&run->clients[held], layer, step);
    run->killed = true;
}

static enum epd_status add_latency(struct replay_report *r, const struct replay_result *result)
{
    if (r->n_latencies + result->n_ranks > r->cap) {
        const uint64_t cap = r->cap ? r->cap * 2 : 4096;
        uint32_t *d = realloc(r->dispatch_us10, cap * sizeof(*d));
        if (d != NULL)
            r->dispatch_us10 = d;
        uint32_t *c = realloc(r->combine_us10, cap * sizeof(*c));
        if (c != NULL)
            r->combine_us10 = c;
        if (d == NULL || c == NULL)
            return EPD_ENOMEM;
        r->cap = cap;
    }
    for (uint32_t i = 0; i < result->n_ranks; i++) {
        r->dispatch_us10[r->n_latencies] = result->dispatch_us10[i];
        r->combine_us10[r->n_latencies++] = result->combine_us10[i];
    }
    return EPD_OK;
}

static enum epd_status add_results(struct run *run)
{
    struct replay_report *r = run->report;
    for (uint32_t i = 0; i < run->plan->clients; i++) {
        const struct replay_result *result = &run->clients[i].result;
        if (result->mismatches > 0 && r->mismatches == 0)
            memcpy(r->first_mismatch, result->text, sizeof(r->first_mismatch));
        r->ops += 2ull * result->n_ranks;
        r->tokens += result->tokens;
        r->rows += result->rows;
        r->selections += result->selections;
        r->mismatches += result->mismatches;
        if (add_latency(r, result) != EPD_OK)
            return ctl_fail(run->err, EPD_ENOMEM, "no memory for the latencies");
    }
    return EPD_OK;
}

/* NULL: every client is done with the step; else why it has to be repeated. */
static const char *why_again(const struct run *run)
{
    const char *why = NULL;
    for (uint32_t i = 0; i < run->plan->clients; i++) {
        const struct client *c = &run->clients[i];
        if (c->pid == 0)
            return "a client died";
        if (c->result.outcome == REPLAY_AGAIN)
            why = c->result.text;
    }
    return why;
}

static enum epd_status check_failed(const struct run *run)
{
    for (uint32_t i = 0; i < run->plan->clients; i++)
        if (run->clients[i].pid != 0 && run->clients[i].result.outcome == REPLAY_FAILED)
            return ctl_fail(run->err, EPD_EINTERNAL, "%s", run->clients[i].result.text);
    return EPD_OK;
}

static enum epd_status run_step(struct run *run, uint32_t layer, uint32_t step)
{
    struct replay_report *r = run->report;
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        enum epd_status status = start_missing(run);
        if (status != EPD_OK)
            return status;
        if (run->plan->kill_client >= 0 && !run->killed && step == run->plan->kill_step)
            kill_in_flight(run, layer, step);
        else
            for (uint32_t i = 0; i < run->plan->clients; i++)
                command(&run->clients[i], layer, step);
        status = collect(run);
        if (status == EPD_OK)
            status = check_failed(run);
        if (status != EPD_OK)
            return status;
        const char *why = why_again(run);
        if (why == NULL)
            return add_results(run);
        if (r->n_repeats < REPLAY_REPEATS_MAX) {
            struct replay_repeat *repeat = &r->repeats[r->n_repeats++];
            repeat->layer = run->plan->layers[layer];
            repeat->step = step;
            (void)snprintf(repeat->why, sizeof(repeat->why), "%s", why);
        }
    }
    return ctl_fail(run->err, EPD_EINTERNAL, "layer %u step %u failed %d times: %s",
                    run->plan->layers[layer], step, ATTEMPTS, r->repeats[r->n_repeats - 1].why);
}

/* ---- the whole ---- */

static void progress(const struct run *run, uint32_t layer, uint32_t step, uint32_t steps)
{
    if (run->ctl->json || !isatty(STDERR_FILENO))
        return;
    (void)fprintf(stderr, "\r\033[Klayer %u (%u of %u) step %u of %u: ops %llu, mismatches %llu%s",
                  run->plan->layers[layer], layer + 1, run->plan->n_layers, step + 1, steps,
                  (unsigned long long)run->report->ops, (unsigned long long)run->report->mismatches,
                  run->report->n_repeats > 0 ? ", with repeats" : "");
}

static enum epd_status create_group(struct run *run)
{
    const struct replay_plan *p = run->plan;
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd_group_config config = EPD_GROUP_CONFIG_INIT;
    struct epd_group_info info = EPD_GROUP_INFO_INIT;
    uint32_t random = 0;
    (void)!getrandom(&random, sizeof(random), 0); /* a clash is EEXIST, said to the user */
    if (p->group != NULL)
        (void)snprintf(run->group_name, sizeof(run->group_name), "%s", p->group);
    else
        (void)snprintf(run->group_name, sizeof(run->group_name), "replay-%08x", random);
    options.socket = run->ctl->socket;
    options.name = "epdctl replay (coordinator)";
    enum epd_status status = epd_open(&options, &run->epd, run->err);
    if (status != EPD_OK)
        return status;
    config.name = run->group_name;
    config.ranks = p->ranks;
    config.experts = p->trace.experts;
    config.max_tokens = p->batch;
    config.topk = p->trace.topk;
    config.hidden = p->hidden;
    config.dtype = p->dtype;
    config.mode = p->mode;
    config.layout = p->layout;
    config.timeout_ms = config.first_timeout_ms = 60000;
    config.placement = p->n_placement != 0 ? p->placement : NULL;
    status = epd_group_create(run->epd, &config, &info, run->err);
    run->group = info.id;
    return status;
}

static enum epd_status run_layers(struct run *run)
{
    enum epd_status status = EPD_OK;
    for (uint32_t l = 0; status == EPD_OK && l < run->plan->n_layers; l++) {
        const struct trace_layer *layer = trace_find(&run->plan->trace, run->plan->layers[l]);
        const uint32_t steps = replay_steps(run->plan, layer->rows);
        for (uint32_t s = 0; status == EPD_OK && s < steps; s++) {
            progress(run, l, s, steps);
            status = run_step(run, l, s);
        }
    }
    if (!run->ctl->json && isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r\033[K");
    return status;
}

static struct run *run_open(struct ctl *ctl, const struct replay_plan *plan,
                            struct replay_report *report, struct epd_error *err)
{
    struct run *run = calloc(1, sizeof(*run));
    if (run == NULL) {
        (void)ctl_fail(err, EPD_ENOMEM, "no memory");
        return NULL;
    }
    run->ctl = ctl;
    run->plan = plan;
    run->report = report;
    run->err = err;
    return run;
}

static void run_close(struct run *run)
{
    for (uint32_t i = 0; i < run->plan->clients; i++) {
        const struct replay_command quit = {.verb = REPLAY_QUIT};
        if (run->clients[i].pid != 0)
            (void)send(run->clients[i].fd, &quit, sizeof(quit), MSG_NOSIGNAL);
    }
    for (uint32_t i = 0; i < run->plan->clients; i++)
        reap(&run->clients[i]);
    if (run->group != 0)
        (void)epd_group_destroy(run->epd, run->group, 1, NULL);
    epd_close(run->epd);
    free(run);
}

enum epd_status replay_run(struct ctl *ctl, const struct replay_plan *plan,
                           struct replay_report *report, struct epd_error *err)
{
    memset(report, 0, sizeof(*report));
    struct run *run = run_open(ctl, plan, report, err);
    if (run == NULL)
        return EPD_ENOMEM;
    enum epd_status status = create_group(run);
    const uint64_t start = now_ms();
    if (status == EPD_OK)
        status = run_layers(run);
    report->seconds = (double)(now_ms() - start) / 1000.0;
    run_close(run);
    return status;
}

enum epd_status replay_loop(struct ctl *ctl, const struct replay_plan *plan, uint32_t iterations,
                            struct replay_result *results, struct epd_error *err)
{
    struct run *run = run_open(ctl, plan, NULL, err);
    if (run == NULL)
        return EPD_ENOMEM;
    enum epd_status status = create_group(run);
    if (status == EPD_OK)
        status = start_missing(run);
    for (uint32_t i = 0; status == EPD_OK && i < plan->clients; i++) {
        const struct replay_command m = {.verb = REPLAY_LOOP, .iterations = iterations};
        run->clients[i].busy =
            send(run->clients[i].fd, &m, sizeof(m), MSG_NOSIGNAL) == (ssize_t)sizeof(m);
    }
    if (status == EPD_OK)
        status = collect(run);
    if (status == EPD_OK)
        status = check_failed(run);
    if (status == EPD_OK && why_again(run) != NULL)
        status = ctl_fail(err, EPD_EINTERNAL, "%s", why_again(run));
    for (uint32_t i = 0; i < plan->clients; i++)
        results[i] = run->clients[i].result;
    run_close(run);
    return status;
}

void replay_report_free(struct replay_report *report)
{
    free(report->dispatch_us10);
    free(report->combine_us10);
    report->dispatch_us10 = report->combine_us10 = NULL;
}
