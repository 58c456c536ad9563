/* The test's side of agents. */
#include "tests/support/agent.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/agent_internal.h"
#include "tests/support/check.h"
#include "tests/support/proc.h"

#define MAX_AGENTS 128

static struct agent g_agents[MAX_AGENTS]; /* running */

/* ---- processes -------------------------------------------------------------------------- */

void agent_start(struct agent *a, const struct daemon *d)
{
    struct agent_state st = {.kept_fd = -1};
    (void)snprintf(st.socket, sizeof(st.socket), "%s", d->socket);
    a->pid = proc_fork(agent_main, &st, &a->fd);
    for (int i = 0; i < MAX_AGENTS; i++)
        if (g_agents[i].pid == 0) {
            g_agents[i] = *a;
            return;
        }
    check_fail("more than %d agents", MAX_AGENTS);
}

static void forget(struct agent *a)
{
    for (int i = 0; i < MAX_AGENTS; i++)
        if (g_agents[i].pid == a->pid)
            g_agents[i] = (struct agent){0};
    (void)close(a->fd);
    *a = (struct agent){0};
}

uint64_t agent_kill(struct agent *a)
{
    uint64_t at = now_ns();
    proc_kill(a->pid);
    forget(a);
    return at;
}

void agent_end(struct agent *a)
{
    agent_close(a);
    (void)shutdown(a->fd, SHUT_RDWR); /* the loop sees the end */
    int code = proc_wait(a->pid, slow_ms(5000));
    if (code == PROC_RUNNING)
        proc_kill(a->pid);
    forget(a);
    check_int(code, 0, "exit code of an agent");
}

void agent_signal(const struct agent *a, int sig)
{
    check_true(kill(a->pid, sig) == 0, "kill(%d, %d): %m", (int)a->pid, sig);
}

void agents_kill_all(void)
{
    for (int i = 0; i < MAX_AGENTS; i++)
        if (g_agents[i].pid != 0) {
            struct agent a = g_agents[i];
            (void)agent_kill(&a);
        }
}

/* ---- calls ------------------------------------------------------------------------------ */

void agent_post(const struct agent *a, const struct agent_cmd *cmd)
{
    check_true(proc_send(a->fd, cmd, sizeof(*cmd)), "agent %d is gone", (int)a->pid);
}

struct agent_reply agent_collect(const struct agent *a, int ms)
{
    struct agent_reply r;
    if (!proc_recv(a->fd, &r, sizeof(r), slow_ms(ms)))
        check_fail("agent %d does not answer", (int)a->pid);
    check_true(r.bad == 0, "agent %d: %s", (int)a->pid, r.text);
    return r;
}

struct agent_reply agent_call(const struct agent *a, const struct agent_cmd *cmd)
{
    agent_post(a, cmd);
    return agent_collect(a, AGENT_MS);
}

static void need_ok(const struct agent_reply *r, const char *what)
{
    check_true(r->status == EPD_OK, "%s: %s: %s", what, epd_status_string(r->status),
               r->err.message);
}

void agent_open(const struct agent *a)
{
    struct agent_reply r = agent_call(a, &(struct agent_cmd){.fn = cmd_open});
    need_ok(&r, "open");
}

void agent_close(const struct agent *a)
{
    (void)agent_call(a, &(struct agent_cmd){.fn = cmd_close});
}

struct agent_reply agent_create(const struct agent *a, const struct group_spec *spec)
{
    struct agent_cmd cmd = {.fn = cmd_create};
    cmd.u.group = *spec;
    struct agent_reply r = agent_call(a, &cmd);
    need_ok(&r, "create group");
    return r;
}

struct agent_reply agent_try_seat(const struct agent *a, uint32_t slot,
                                  const struct seat_config *config)
{
    struct agent_cmd cmd = {.fn = cmd_seat, .slot = slot};
    cmd.u.seat = *config;
    return agent_call(a, &cmd);
}

void agent_seat(const struct agent *a, uint32_t slot, const struct seat_config *config)
{
    struct agent_reply r = agent_try_seat(a, slot, config);
    check_true(r.status == EPD_OK, "seat %u: %s: %s", config->rank, epd_status_string(r.status),
               r.err.message);
}

struct agent_reply agent_dispatch_twisted(const struct agent *a, uint32_t slot, uint32_t step,
                                          const struct seat_twist *twist)
{
    struct agent_cmd cmd = {.fn = cmd_dispatch, .slot = slot, .step = step};
    cmd.u.twist = *twist;
    struct agent_reply r = agent_call(a, &cmd);
    need_ok(&r, "dispatch");
    return r;
}

struct agent_reply agent_dispatch(const struct agent *a, uint32_t slot, uint32_t step)
{
    return agent_dispatch_twisted(a, slot, step, &(struct seat_twist){0});
}

struct agent_reply agent_combine_twisted(const struct agent *a, uint32_t slot, uint64_t epoch,
                                         const struct seat_twist *twist)
{
    struct agent_cmd cmd = {.fn = cmd_combine, .slot = slot, .a = {epoch}};
    cmd.u.twist = *twist;
    struct agent_reply r = agent_call(a, &cmd);
    need_ok(&r, "combine");
    return r;
}

struct agent_reply agent_combine(const struct agent *a, uint32_t slot, uint64_t epoch)
{
    return agent_combine_twisted(a, slot, epoch, &(struct seat_twist){0});
}

struct agent_reply agent_release(const struct agent *a, uint32_t slot, uint64_t epoch)
{
    struct agent_cmd cmd = {.fn = cmd_release, .slot = slot, .a = {epoch}};
    struct agent_reply r = agent_call(a, &cmd);
    need_ok(&r, "release");
    return r;
}

void agent_post_wait(const struct agent *a, uint32_t slot, int timeout_ms)
{
    struct agent_cmd cmd = {
        .fn = cmd_wait, .slot = slot, .a = {(uint64_t)slow_ms(timeout_ms) * 1000000u}};
    agent_post(a, &cmd);
}

struct agent_reply agent_wait(const struct agent *a, uint32_t slot, int timeout_ms)
{
    agent_post_wait(a, slot, timeout_ms);
    return agent_collect(a, timeout_ms + AGENT_MS);
}

void agent_wait_good(const struct agent *a, uint32_t slot)
{
    struct agent_cmd cmd = {.fn = cmd_wait_good, .slot = slot};
    struct agent_reply r = agent_call(a, &cmd);
    need_ok(&r, "wait");
}

struct epd_result agent_wait_status(const struct agent *a, uint32_t slot, enum epd_status status)
{
    struct agent_reply r = agent_wait(a, slot, 15000);
    need_ok(&r, "wait");
    check_true(r.result.status == status, "completion is %s, expected %s (%s)",
               epd_status_string(r.result.status), epd_status_string(status), r.text);
    (void)agent_call(a, &(struct agent_cmd){.fn = cmd_forgive, .slot = slot});
    return r.result;
}

void agent_rearm(const struct agent *a, uint32_t slot)
{
    struct agent_reply r = agent_call(a, &(struct agent_cmd){.fn = cmd_rearm, .slot = slot});
    need_ok(&r, "rearm");
}

void agent_quiet(const struct agent *a, uint32_t slot)
{
    (void)agent_call(a, &(struct agent_cmd){.fn = cmd_quiet, .slot = slot});
}

struct agent_reply agent_status(const struct agent *a)
{
    struct agent_reply r = agent_call(a, &(struct agent_cmd){.fn = cmd_status});
    need_ok(&r, "status");
    return r;
}

/* ---- runs ------------------------------------------------------------------------------- */

void agent_post_run(const struct agent *a, const struct run_args *args)
{
    struct agent_cmd cmd = {
        .fn = cmd_run,
        .slot = args->slot,
        .step = args->first,
        .a = {args->style, args->seats, args->steps, args->seed},
    };
    agent_post(a, &cmd);
}

void agent_post_until_lost(const struct agent *a, uint32_t slot, uint32_t first, bool verify,
                           uint64_t steps)
{
    struct agent_cmd cmd = {
        .fn = cmd_until_lost, .slot = slot, .step = first, .a = {verify, steps}};
    agent_post(a, &cmd);
}

void agents_run(const struct agent *a, uint32_t agents, const struct run_args *args)
{
    struct agent_reply first = {0};
    uint32_t bad = 0;
    for (uint32_t i = 0; i < agents; i++)
        agent_post_run(&a[i], args);
    for (uint32_t i = 0; i < agents; i++) {
        struct agent_reply r;
        check_true(proc_recv(a[i].fd, &r, sizeof(r), slow_ms(AGENT_MS)),
                   "agent %d does not answer%s%s", (int)a[i].pid, bad ? "; first: " : "",
                   first.text);
        if (r.bad && bad++ == 0)
            first = r;
    }
    check_true(bad == 0, "%u of %u agents failed; first: %s", bad, agents, first.text);
}
