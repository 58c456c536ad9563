/* What runs in an agent, except the loops (agent_run.c) and the daemon's status (agent_status.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"
#include "tests/support/proc.h"

#define WAIT_MS 20000

int agent_main(int fd, void *arg)
{
    struct agent_state *st = arg;
    struct agent_cmd cmd;
    while (proc_recv(fd, &cmd, sizeof(cmd), -1)) {
        struct agent_reply reply = {.status = EPD_OK};
        cmd.fn(st, &cmd, &reply);
        if (reply.ns == 0)
            reply.ns = now_ns();
        if (!proc_send(fd, &reply, sizeof(reply)))
            break;
    }
    return 0;
}

AGENT_COMMAND(cmd_open)
{
    (void)cmd;
    struct epd_open_options o = EPD_OPEN_OPTIONS_INIT;
    o.socket = st->socket;
    o.name = "agent";
    o.wait_daemon = (uint32_t)cmd->a[0];
    o.timeout_ns = (int64_t)slow_ms(10000) * 1000000;
    reply->status = epd_open(&o, &st->epd, &reply->err);
}

AGENT_COMMAND(cmd_close)
{
    (void)cmd;
    (void)reply;
    for (uint32_t i = 0; i < AGENT_SEATS; i++) {
        if (cmd->a[0])
            seat_forget(st->seat[i]); /* let the end of the session free it all */
        else
            seat_close(st->seat[i]);
        st->seat[i] = NULL;
    }
    epd_close(st->epd);
    st->epd = NULL;
}

AGENT_COMMAND(cmd_create)
{
    const struct group_spec *g = &cmd->u.group;
    struct epd_group_config c = EPD_GROUP_CONFIG_INIT;
    struct epd_group_info info = EPD_GROUP_INFO_INIT;
    c.name = g->name;
    c.ranks = g->shape.ranks;
    c.experts = g->shape.experts;
    c.max_tokens = g->shape.max_tokens;
    c.topk = g->shape.topk;
    c.hidden = g->shape.hidden;
    c.dtype = g->shape.dtype;
    c.mode = g->shape.mode;
    c.layout = g->shape.layout;
    c.timeout_ms = g->timeout_ms;
    c.first_timeout_ms = g->first_timeout_ms;
    c.ephemeral = g->ephemeral;
    c.allow_absent = g->allow_absent;
    c.placement = g->has_placement ? g->placement : NULL;
    c.key = g->has_key ? g->key : NULL;
    reply->status = epd_group_create(st->epd, &c, &info, &reply->err);
    reply->v[0] = info.id;
    reply->v[1] = info.generation;
}

AGENT_COMMAND(cmd_destroy)
{
    reply->status = epd_group_destroy(st->epd, cmd->a[0], (uint32_t)cmd->a[1], &reply->err);
}

AGENT_COMMAND(cmd_seat)
{
    seat_forget(st->seat[cmd->slot]);
    st->seat[cmd->slot] = seat_open(st->epd, &cmd->u.seat, &reply->err);
    reply->status = st->seat[cmd->slot] ? EPD_OK : reply->err.status;
    if (st->seat[cmd->slot])
        reply->v[0] = epd_lease_generation(st->seat[cmd->slot]->lease);
}

AGENT_COMMAND(cmd_dispatch)
{
    struct epd_ticket t = {0};
    reply->status = seat_dispatch(st->seat[cmd->slot], cmd->step, &cmd->u.twist, &t);
    reply->v[0] = t.ticket;
    reply->v[1] = t.epoch;
}

AGENT_COMMAND(cmd_combine)
{
    struct epd_ticket t = {0};
    reply->status = seat_combine(st->seat[cmd->slot], cmd->a[0], &cmd->u.twist, &t);
    reply->v[0] = t.ticket;
    reply->v[1] = t.epoch;
}

AGENT_COMMAND(cmd_release)
{
    struct epd_ticket t = {0};
    reply->status = epd_release(st->seat[cmd->slot]->lease, cmd->a[0], &t);
    reply->v[0] = t.ticket;
    reply->v[1] = t.epoch;
}

AGENT_COMMAND(cmd_wait)
{
    reply->status = epd_wait(st->seat[cmd->slot]->lease, (int64_t)cmd->a[0], &reply->result);
    reply->ns = now_ns();
    if (reply->status == EPD_OK)
        (void)epd_result_describe(&reply->result, reply->text, sizeof(reply->text));
}

AGENT_COMMAND(cmd_wait_good)
{
    struct seat *s = st->seat[cmd->slot];
    reply->status = epd_wait(s->lease, (int64_t)slow_ms(WAIT_MS) * 1000000, &reply->result);
    reply->ns = now_ns();
    if (reply->status != EPD_OK)
        return;
    reply->bad = !seat_verify(s, &reply->result, reply->text);
    if (!reply->bad && reply->result.kind == EPD_OP_DISPATCH)
        seat_experts(s, reply->result.epoch);
}

AGENT_COMMAND(cmd_forgive)
{
    (void)reply;
    seat_forgive(st->seat[cmd->slot]);
}

AGENT_COMMAND(cmd_rearm)
{
    struct seat *s = st->seat[cmd->slot];
    reply->status = epd_rearm(s->lease, &reply->err);
    seat_forgive(s);
    s->combines = 0;
    reply->v[0] = epd_lease_generation(s->lease);
}

AGENT_COMMAND(cmd_quiet)
{
    reply->bad = !seat_quiet(st->seat[cmd->slot], reply->text);
    reply->v[0] = seat_digest(st->seat[cmd->slot]);
}
