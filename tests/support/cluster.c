#include "tests/support/cluster.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/proc.h"

static uint32_t or_else(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

static void plan(struct cluster *c, const struct cluster_spec *s)
{
    static unsigned number;
    const uint32_t devices = or_else(s->devices, 1);
    const uint32_t layout = or_else(s->layout, EPD_LAYOUT_EXPERT_MAJOR);
    struct group_spec *g = &c->spec;
    if (s->name)
        (void)snprintf(g->name, sizeof(g->name), "%s", s->name);
    else
        (void)snprintf(g->name, sizeof(g->name), "cluster-%u", number++);
    g->shape = (struct epd_shape){
        .ranks = c->ranks,
        .experts = c->ranks * 4,
        .max_tokens = or_else(s->tokens, 16),
        .topk = 3,
        .hidden = or_else(s->hidden, 64),
        .dtype = EPD_DTYPE_BF16,
        .mode = EPD_MODE_LL,
        .layout = layout,
    };
    g->timeout_ms = (uint32_t)slow_ms((int)or_else(s->timeout_ms, 20000));
    g->first_timeout_ms = g->timeout_ms;
    g->ephemeral = !s->keep;
    g->has_placement = 1;
    for (uint32_t r = 0; r < c->ranks; r++)
        g->placement[r] = s->first_device + r % devices;
    c->seat = (struct seat_config){
        .w = {.shape = g->shape,
              .seed = 77u + number,
              .ids_type = or_else(s->ids_type, EPD_IDS_INT64),
              .b_pattern = s->b_pattern},
        .sets = or_else(s->sets, 2),
        .flags = s->flags,
        .ring_depth = s->depth,
    };
}

static void take_seat(struct cluster *c, uint32_t rank)
{
    struct seat_config s = c->seat;
    s.rank = rank;
    s.group = c->group;
    agent_seat(&c->a[rank], 0, &s);
}

void cluster_open(struct cluster *c, struct daemon *d, const struct cluster_spec *spec)
{
    *c = (struct cluster){.daemon = d, .ranks = or_else(spec->ranks, 2)};
    check_true(c->ranks <= CLUSTER_MAX, "cluster of %u ranks", c->ranks);
    plan(c, spec);
    for (uint32_t r = 0; r < c->ranks; r++) {
        agent_start(&c->a[r], d);
        agent_open(&c->a[r]);
    }
    c->group = agent_create(&c->a[0], &c->spec).v[0];
    for (uint32_t r = 0; r < c->ranks; r++)
        take_seat(c, r);
}

void cluster_close(struct cluster *c)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        if (c->a[r].pid != 0)
            agent_end(&c->a[r]);
}

void cluster_post_run(struct cluster *c, uint32_t style, uint32_t first, uint32_t steps)
{
    const struct run_args args = {
        .style = style, .seats = 1, .first = first, .steps = steps, .seed = c->seat.w.seed};
    for (uint32_t r = 0; r < c->ranks; r++)
        agent_post_run(&c->a[r], &args);
}

void cluster_collect_run(struct cluster *c)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        (void)agent_collect(&c->a[r], AGENT_MS);
}

void cluster_run(struct cluster *c, uint32_t style, uint32_t first, uint32_t steps)
{
    const struct run_args args = {
        .style = style, .seats = 1, .first = first, .steps = steps, .seed = c->seat.w.seed};
    agents_run(c->a, c->ranks, &args);
}

void cluster_replace(struct cluster *c, uint32_t rank)
{
    if (c->a[rank].pid != 0)
        (void)agent_kill(&c->a[rank]);
    agent_start(&c->a[rank], c->daemon);
    agent_open(&c->a[rank]);
    take_seat(c, rank);
}

void cluster_rearm(struct cluster *c, int except)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        if ((int)r != except)
            agent_rearm(&c->a[r], 0);
}

void cluster_step(struct cluster *c, uint32_t step)
{
    uint64_t epoch[CLUSTER_MAX];
    for (uint32_t r = 0; r < c->ranks; r++)
        epoch[r] = agent_dispatch(&c->a[r], 0, step).v[1];
    for (uint32_t r = 0; r < c->ranks; r++)
        agent_wait_good(&c->a[r], 0);
    for (uint32_t r = 0; r < c->ranks; r++)
        (void)agent_combine(&c->a[r], 0, epoch[r]);
    for (uint32_t r = 0; r < c->ranks; r++)
        agent_wait_good(&c->a[r], 0);
}
