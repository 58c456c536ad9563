#include "client/epdctl/replay.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/epdctl/options.h"

enum {
    OPT_LAYERS = 1,
    OPT_RANKS,
    OPT_BATCH,
    OPT_HIDDEN,
    OPT_DTYPE,
    OPT_MODE,
    OPT_LAYOUT,
    OPT_STEPS,
    OPT_CLIENTS,
    OPT_VERIFY,
    OPT_DUMP,
    OPT_GROUP,
    OPT_PLACEMENT,
    OPT_KILL,
    OPT_WORKER,
    OPT_FD
};
static const struct option g_options[] = {
    {"layers", 1, NULL, OPT_LAYERS},
    {"ranks", 1, NULL, OPT_RANKS},
    {"batch", 1, NULL, OPT_BATCH},
    {"hidden", 1, NULL, OPT_HIDDEN},
    {"dtype", 1, NULL, OPT_DTYPE},
    {"mode", 1, NULL, OPT_MODE},
    {"layout", 1, NULL, OPT_LAYOUT},
    {"steps", 1, NULL, OPT_STEPS},
    {"clients", 1, NULL, OPT_CLIENTS},
    {"verify", 0, NULL, OPT_VERIFY},
    {"dump", 1, NULL, OPT_DUMP},
    {"group", 1, NULL, OPT_GROUP},
    {"placement", 1, NULL, OPT_PLACEMENT},
    {"kill-client", 1, NULL, OPT_KILL},
    {"worker", 1, NULL, OPT_WORKER},
    {"fd", 1, NULL, OPT_FD},
    {NULL, 0, NULL, 0},
};

/* "1,8,20" -> numbers. False: malformed or too many. */
static bool parse_list(const char *text, uint32_t max, uint32_t *out, uint32_t cap, uint32_t *n_out)
{
    char part[16];
    *n_out = 0;
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof(part) || *n_out == cap)
            return false;
        memcpy(part, at, n);
        part[n] = 0;
        if (!parse_u32(part, 0, max, &out[(*n_out)++]))
            return false;
        at += n;
        if (*at == 0)
            return true;
    }
}

/* "C@STEP" */
static bool parse_kill(const char *text, struct replay_plan *plan)
{
    uint32_t client;
    char part[16];
    const size_t n = strcspn(text, "@");
    if (n == 0 || n >= sizeof(part) || text[n] != '@')
        return false;
    memcpy(part, text, n);
    part[n] = 0;
    if (!parse_u32(part, 0, REPLAY_CLIENTS_MAX - 1, &client) ||
        !parse_u32(text + n + 1, 0, UINT32_MAX - 1, &plan->kill_step))
        return false;
    plan->kill_client = (int)client;
    return true;
}

static bool take_option(struct replay_plan *p, int option, char *value)
{
    uint32_t number = 0;
    switch (option) {
    case OPT_LAYERS:
        return parse_list(value, 100000, p->layers, REPLAY_LAYERS_MAX, &p->n_layers);
    case OPT_RANKS:
        return parse_u32(value, 1, EPD_MAX_RANKS, &p->ranks);
    case OPT_BATCH:
        return parse_u32(value, 1, EPD_MAX_TOKENS, &p->batch);
    case OPT_HIDDEN:
        return parse_u32(value, 1, EPD_MAX_HIDDEN_BYTES, &p->hidden);
    case OPT_DTYPE:
        if (!parse_dtype(value, &number))
            return false;
        p->dtype = (enum oracle_dtype)number;
        return true;
    case OPT_MODE:
        return parse_mode(value, &p->mode);
    case OPT_LAYOUT:
        return parse_layout(value, &p->layout);
    case OPT_STEPS:
        return parse_u32(value, 1, UINT32_MAX - 1, &p->steps);
    case OPT_CLIENTS:
        return parse_u32(value, 1, REPLAY_CLIENTS_MAX, &p->clients);
    case OPT_VERIFY:
        p->verify = true;
        return true;
    case OPT_DUMP:
        p->dump = value;
        return true;
    case OPT_GROUP:
        p->group = value;
        return true;
    case OPT_PLACEMENT:
        return parse_list(value, EPD_MAX_DEVICES - 1, p->placement, EPD_MAX_RANKS, &p->n_placement);
    case OPT_KILL:
        return parse_kill(value, p);
    case OPT_WORKER:
    case OPT_FD:
        if (!parse_u32(value, 0, 1000000, &number))
            return false;
        *(option == OPT_FD ? &p->fd : &p->worker) = (int)number;
        return true;
    default:
        return false;
    }
}

static int check_sizes(struct ctl *ctl, struct replay_plan *p)
{
    const struct trace *t = &p->trace;
    if (p->mode == EPD_MODE_HT)
        return ctl_usage(ctl, "--mode ht: high-throughput mode is not supported yet; use ll");
    if (p->layout == EPD_LAYOUT_FLAT)
        return ctl_usage(ctl, "--layout flat belongs to --mode ht, which is not supported yet; use "
                              "expert or rank");
    if (t->experts % p->ranks != 0)
        return ctl_usage(ctl, "--ranks %u does not divide the trace's %u experts", p->ranks,
                         t->experts);
    if (p->clients > p->ranks)
        return ctl_usage(ctl, "--clients %u is more than --ranks %u", p->clients, p->ranks);
    if (p->n_placement != 0 && p->n_placement != p->ranks)
        return ctl_usage(ctl, "--placement names %u devices, --ranks is %u", p->n_placement,
                         p->ranks);
    if (p->kill_client >= (int)p->clients)
        return ctl_usage(ctl, "--kill-client %d: there are %u clients", p->kill_client, p->clients);
    if (p->kill_client >= 0 && p->clients < 2)
        return ctl_usage(ctl, "--kill-client needs at least --clients 2");
    if (p->hidden * oracle_bytes(p->dtype) % 16 != 0)
        return ctl_usage(ctl, "--hidden %u is not a multiple of 16 bytes", p->hidden);
    return CTL_OK;
}

static int check_layers(struct ctl *ctl, struct replay_plan *p)
{
    const struct trace *t = &p->trace;
    if (p->n_layers == 0)
        for (uint32_t i = 0; i < t->n_layers; i++)
            p->layers[p->n_layers++] = t->layers[i].layer;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct trace_layer *l = trace_find(t, p->layers[i]);
        if (l == NULL)
            return ctl_usage(ctl, "--layers: the trace has no layer %u", p->layers[i]);
        const uint32_t per_step = p->ranks * p->batch, have = (l->rows + per_step - 1) / per_step;
        if (p->steps > have)
            return ctl_usage(ctl, "--steps %u: layer %u has rows for %u steps of %u", p->steps,
                             l->layer, have, per_step);
    }
    return CTL_OK;
}

int replay_plan_parse(struct ctl *ctl, struct replay_plan *plan)
{
    struct epd_error err = {.status = EPD_OK};
    memset(plan, 0, sizeof(*plan));
    plan->ranks = 8;
    plan->batch = 128;
    plan->hidden = 2048;
    plan->dtype = ORACLE_BF16;
    plan->mode = EPD_MODE_LL;
    plan->layout = EPD_LAYOUT_EXPERT_MAJOR;
    plan->kill_client = plan->worker = plan->fd = -1;
    opterr = 0;
    for (int c; (c = getopt_long(ctl->argc, ctl->argv, "", g_options, NULL)) != -1;)
        if (!take_option(plan, c, optarg))
            return ctl_usage(ctl, "bad option or value \"%s\"", ctl->argv[optind - 1]);
    if (optind + 1 != ctl->argc)
        return ctl_usage(ctl, optind >= ctl->argc ? "TRACE is missing" : "more than one TRACE");
    plan->trace_path = ctl->argv[optind];
    if (plan->clients == 0)
        plan->clients = plan->ranks < 4 ? plan->ranks : 4;
    if (trace_load(plan->trace_path, &plan->trace, &err) != EPD_OK) {
        (void)ctl_report(ctl, &err);
        return CTL_USAGE;
    }
    int code = check_sizes(ctl, plan);
    if (code == CTL_OK)
        code = check_layers(ctl, plan);
    if (code != CTL_OK)
        replay_plan_free(plan);
    return code;
}

void replay_plan_free(struct replay_plan *plan)
{
    trace_free(&plan->trace);
}

uint32_t replay_steps(const struct replay_plan *plan, uint32_t rows)
{
    const uint32_t per_step = plan->ranks * plan->batch;
    return plan->steps != 0 ? plan->steps : (rows + per_step - 1) / per_step;
}

uint32_t replay_client_of(const struct replay_plan *plan, uint32_t rank)
{
    return rank * plan->clients / plan->ranks;
}

struct oracle_shape replay_shape(const struct replay_plan *plan)
{
    return (struct oracle_shape){
        .ranks = plan->ranks,
        .experts = plan->trace.experts,
        .topk = plan->trace.topk,
        .hidden = plan->hidden,
        .dtype = plan->dtype,
        .rank_major = plan->layout == EPD_LAYOUT_RANK_MAJOR,
    };
}
