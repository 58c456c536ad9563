#define EPD_LOG_COMPONENT "group"
#include "daemon/core/change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"

/* A request of one phase of one change. */
struct step {
    struct epd_group *group;
    unsigned device;
    uint64_t change;
};

static void revoked(struct epd_group *g);
static void settle(struct epd_group *g);
static void armed(struct epd_group *g);

static struct step *step_new(struct epd_group *g, unsigned device)
{
    struct step *s = epd_must_calloc(sizeof(*s));
    *s = (struct step){.group = g, .device = device, .change = g->change};
    g->refs++;
    return s;
}

/* False: the reply belongs to a change that is over. */
static bool step_end(struct step *s, struct epd_group **group_out, unsigned *device_out)
{
    struct epd_group *g = s->group;
    const bool current = s->change == g->change;
    *group_out = g;
    *device_out = s->device;
    free(s);
    return current;
}

/* An engine that refuses a step of the protocol has lost track: its successor will not have. */
static void distrust(struct epd_group *g, unsigned device, const char *what,
                     const struct epd_link_reply *reply)
{
    char text[256];
    if (reply->err == NULL || reply->msg == NULL)
        return;
    (void)snprintf(text, sizeof(text), "engine refused %s of group %.63s: %.60s", what, g->name,
                   reply->err->message);
    epd_device_kill(g->core->device[device], text);
}

static bool send_step(struct epd_group *g, unsigned device, struct epd_msg_epoch *msg,
                      epd_link_fn fn)
{
    struct step *s = step_new(g, device);
    msg->h.bytes = sizeof(*msg);
    msg->group = g->id;
    msg->generation = g->generation;
    msg->status = g->cause.status;
    msg->rank = g->cause.rank;
    msg->other_rank = g->cause.other_rank;
    msg->present = epd_group_present(g);
    if (epd_device_request(g->core->device[device], &msg->h, NULL, 0, fn, s) == EPD_OK)
        return true;
    free(s);
    epd_group_put(g);
    return false;
}

/* ---- revoke ---- */

static void revoke_answered(struct epd_group *g, unsigned device)
{
    g->unrevoked &= ~(1u << device);
    if (g->state == EPD_GROUP_REVOKING && g->unrevoked == 0)
        revoked(g);
}

static void on_revoke_reply(void *arg, const struct epd_link_reply *reply)
{
    struct epd_group *g;
    unsigned device;
    if (step_end(arg, &g, &device)) {
        distrust(g, device, "REVOKE", reply);
        /* A lost engine counts when it is reaped, see epd_change_device_down. */
        if (reply->err == NULL)
            revoke_answered(g, device);
    }
    epd_group_put(g);
}

static void on_revoke_late(uv_timer_t *timer)
{
    struct epd_group *g = timer->data;
    EPD_FOR_DEVICES(d, g->unrevoked)
    {
        g->core->counters.revoke_kills++;
        epd_device_kill(g->core->device[d], "engine did not stop writing within revoke_ms");
    }
}

static bool may_write(const struct epd_device *device)
{
    /* Not reaped, and perhaps armed: a replayed engine gets ARM only from a change. */
    return epd_device_state(device) == EPD_DEVICE_RUNNING ||
           epd_device_state(device) == EPD_DEVICE_DYING;
}

static void start(struct epd_group *g, const struct epd_cause *cause, const char *text)
{
    g->change++;
    g->cause = *cause;
    (void)snprintf(g->cause_text, sizeof(g->cause_text), "%s", text);
    epd_group_set_state(g, EPD_GROUP_EV_CHANGE);
    g->core->counters.generation_changes++;
    log_debug("group %s: generation changes: %s", g->name, text);
    g->unrevoked = 0;
    EPD_FOR_DEVICES(d, g->devices)
    if (may_write(g->core->device[d]))
        g->unrevoked |= 1u << d;
    if (g->unrevoked == 0) {
        revoked(g);
        return;
    }
    EPD_FOR_DEVICES(d, g->unrevoked)
    {
        struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_REVOKE}, .epoch = EPD_EPOCH_ALL};
        (void)send_step(g, d, &msg, on_revoke_reply); /* a dying one is waited for */
    }
    (void)uv_timer_start(&g->revoke_timer, on_revoke_late, g->core->config->revoke_ms, 0);
}

static void clear_leavers(struct epd_group *g)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->seat[r].lease != NULL && g->seat[r].lease->state == EPD_LEASE_RECLAIMING)
            epd_lease_clear(g->seat[r].lease);
}

void epd_change_begin(struct epd_group *g, const struct epd_cause *cause, const char *text)
{
    switch (g->state) {
    case EPD_GROUP_ARMED:
    case EPD_GROUP_REARM:
        start(g, cause, text);
        break;
    case EPD_GROUP_WAITING: /* quiet on all engines that run */
        g->refs++;
        clear_leavers(g);
        epd_change_end_if_due(g);
        epd_group_put(g);
        break;
    case EPD_GROUP_ARMING:
        if (!g->again) {
            g->again_cause = *cause;
            (void)snprintf(g->again_text, sizeof(g->again_text), "%s", text);
        }
        g->again = true;
        break;
    case EPD_GROUP_REVOKING: /* part of the change that runs */
    case EPD_GROUP_CHANGING:
    case EPD_GROUP_CREATING: /* looks at its devices itself */
    case EPD_GROUP_DROPPING:
    case EPD_GROUP_GONE:
        break;
    }
}

/* ---- generation ---- */

static void on_generation_reply(void *arg, const struct epd_link_reply *reply)
{
    struct epd_group *g;
    unsigned device;
    if (step_end(arg, &g, &device)) {
        distrust(g, device, "GENERATION", reply);
        if (reply->err == NULL)
            g->acked |= 1u << device;
        if (--g->outstanding == 0)
            settle(g);
    }
    epd_group_put(g);
}

static void send_generation(struct epd_group *g, unsigned device)
{
    struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_GENERATION}, .epoch = EPD_EPOCH_ALL};
    if (epd_device_running(g->core->device[device]) &&
        send_step(g, device, &msg, on_generation_reply))
        g->outstanding++;
}

static void revoked(struct epd_group *g)
{
    (void)uv_timer_stop(&g->revoke_timer); /* always succeeds */
    epd_group_set_state(g, EPD_GROUP_EV_REVOKED);
    g->generation++;
    g->n_failing = 0;
    g->acked = 0;
    g->outstanding = 0;
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->seat[r].lease != NULL)
            epd_lease_unarm(g->seat[r].lease);
    epd_events_add(g->core->events, "group", g->name, "generation %u: %s", g->generation,
                   g->cause_text);
    g->outstanding = 1; /* no answer ends the phase before all are asked */
    EPD_FOR_DEVICES(d, g->devices)
    send_generation(g, d);
    if (--g->outstanding == 0)
        settle(g);
}

/* ---- arm ---- */

static void on_arm_reply(void *arg, const struct epd_link_reply *reply)
{
    struct epd_group *g;
    unsigned device;
    if (step_end(arg, &g, &device)) {
        distrust(g, device, "ARM", reply);
        if (--g->outstanding == 0)
            armed(g);
    }
    epd_group_put(g);
}

/* In order on each engine: what left, what joins, ARM. */
static void arm(struct epd_group *g)
{
    epd_group_set_state(g, EPD_GROUP_EV_ALL_ACKED);
    g->outstanding = 1;
    clear_leavers(g);
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->seat[r].joiner != NULL && g->seat[r].joiner->chunk != NULL)
            epd_lease_send(g->seat[r].joiner);
    EPD_FOR_DEVICES(d, g->devices)
    {
        struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_ARM}, .epoch = EPD_EPOCH_ALL};
        if (send_step(g, d, &msg, on_arm_reply))
            g->outstanding++;
    }
    if (--g->outstanding == 0)
        armed(g);
}

static void settle(struct epd_group *g)
{
    if (g->acked == g->devices) {
        arm(g);
        return;
    }
    epd_group_set_state(g, EPD_GROUP_EV_SOME_ACKED);
    g->refs++;
    clear_leavers(g);
    epd_change_end_if_due(g);
    epd_waiters_run(&g->waiters);
    epd_group_put(g);
}

static bool all_rearmed(const struct epd_group *g)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->seat[r].lease != NULL && g->seat[r].lease->state == EPD_LEASE_REARM)
            return false;
    return true;
}

static void armed(struct epd_group *g)
{
    epd_group_set_state(g, all_rearmed(g) ? EPD_GROUP_EV_ARMED : EPD_GROUP_EV_ARMED_SOME);
    if (g->again) {
        g->again = false;
        start(g, &g->again_cause, g->again_text);
        return;
    }
    for (uint32_t r = 0; r < g->shape.ranks && epd_group_stable(g); r++)
        if (g->seat[r].joiner != NULL)
            epd_lease_join(g->seat[r].joiner);
    g->refs++;
    epd_change_end_if_due(g);
    epd_waiters_run(&g->waiters);
    epd_group_put(g);
}

void epd_change_rearmed(struct epd_group *g)
{
    if (g->state == EPD_GROUP_REARM && all_rearmed(g))
        epd_group_set_state(g, EPD_GROUP_EV_REARMED);
}

void epd_change_end_if_due(struct epd_group *g)
{
    const bool due = g->destroy || (g->ephemeral && g->leased_once);
    if (!due || epd_group_has_leases(g))
        return;
    if (g->state == EPD_GROUP_ARMED || g->state == EPD_GROUP_WAITING)
        epd_group_drop(g);
}

/* ---- devices ---- */

void epd_change_device_down(struct epd_group *g, unsigned device)
{
    char text[80];
    const struct epd_cause cause = {.status = EPD_EENGINERESTARTED, .rank = -1, .other_rank = -1};
    if ((g->devices >> device & 1u) == 0)
        return;
    (void)snprintf(text, sizeof(text), "engine of device %u restarted", device);
    g->acked &= ~(1u << device);
    g->refs++;
    if (g->state == EPD_GROUP_REVOKING)
        revoke_answered(g, device);
    else
        epd_change_begin(g, &cause, text);
    epd_group_put(g);
}

void epd_change_device_up(struct epd_group *g, unsigned device)
{
    if ((g->devices >> device & 1u) == 0)
        return;
    if (g->state != EPD_GROUP_WAITING && g->state != EPD_GROUP_CHANGING)
        return;
    epd_group_set_state(g, EPD_GROUP_EV_DEVICE_UP);
    send_generation(g, device);
    if (g->outstanding == 0)
        settle(g);
}

const struct epd_device *epd_change_failed_device(const struct epd_group *g)
{
    EPD_FOR_DEVICES(d, g->devices)
    if (epd_device_state(g->core->device[d]) == EPD_DEVICE_FAILED)
        return g->core->device[d];
    return NULL;
}

void epd_change_device_failed(struct epd_group *g)
{
    const struct epd_device *failed = epd_change_failed_device(g);
    struct epd_error err;
    if (failed == NULL)
        return;
    (void)epd_fail(&err, EPD_EDEVICE, "device %u of group %s has failed; see its log",
                   epd_device_index(failed), g->name);
    g->refs++;
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        struct epd_lease *joiner = g->seat[r].joiner;
        /* One without a ring, or sent, hears from the device itself. */
        if (joiner != NULL && joiner->chunk != NULL && !joiner->sent)
            epd_lease_abandon(joiner, &err);
    }
    epd_waiters_run(&g->waiters);
    epd_group_put(g);
}

/* ---- waiting for it ---- */

struct stable {
    struct epd_group *group;
    epd_alive_fn alive;
    epd_group_fn fn;
    void *arg;
};

static void on_maybe_stable(void *arg)
{
    struct stable *s = arg;
    struct epd_group *g = s->group;
    const struct epd_device *failed = epd_change_failed_device(g);
    struct epd_error err = {.status = EPD_OK};
    if (g->state == EPD_GROUP_DROPPING || g->state == EPD_GROUP_GONE)
        (void)epd_fail(&err, EPD_ESTALE, "group %s is gone", g->name);
    else if (s->alive != NULL && !s->alive(s->arg))
        (void)epd_fail(&err, EPD_ECANCELED, "the call was cancelled");
    else if (!epd_group_stable(g) && failed != NULL)
        (void)epd_fail(&err, EPD_EDEVICE, "device %u of group %s has failed; see its log",
                       epd_device_index(failed), g->name);
    else if (!epd_group_stable(g)) {
        epd_waiters_add(&g->waiters, on_maybe_stable, s);
        return;
    }
    if (err.status == EPD_OK)
        s->fn(s->arg, g, NULL);
    else
        s->fn(s->arg, NULL, &err);
    free(s);
    epd_group_put(g);
}

void epd_change_wait_stable(struct epd_group *g, epd_alive_fn alive, epd_group_fn fn, void *arg)
{
    struct stable *s = epd_must_calloc(sizeof(*s));
    *s = (struct stable){.group = g, .alive = alive, .fn = fn, .arg = arg};
    g->refs++; /* for the waiter */
    on_maybe_stable(s);
}
