#include "daemon/core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/group.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"
#include "daemon/core/session.h"

/* ---- the whole ---- */

static void add_problem(struct epd_status_summary *s, const struct epd_device_info *d)
{
    if (s->n_problems == EPD_STATUS_PROBLEMS)
        return;
    char *text = s->problem[s->n_problems];
    if (strcmp(d->state, "failed") == 0)
        (void)snprintf(
            text, sizeof(s->problem[0]),
            "device %u failed after %u restarts (%.100s): its groups wait; find the cause "
            "in the engine's log; it is tried again every minute",
            d->index, d->restarts, d->cause);
    else if (strcmp(d->state, "restarting") == 0)
        (void)snprintf(
            text, sizeof(s->problem[0]),
            "device %u restarts (%.100s): its groups wait for it; nothing to do unless it "
            "repeats",
            d->index, d->cause);
    else
        return;
    s->n_problems++;
}

void epd_status_summary(const struct epd_core *core, struct epd_status_summary *out)
{
    *out = (struct epd_status_summary){
        .state = epd_core_state_name(epd_core_state(core)),
        .uptime_ms = (epd_now_ns() - core->started_ns) / 1000000u,
        .sessions = core->sessions.used,
        .groups = core->groups.used,
        .devices = core->n_devices,
    };
    for (unsigned i = 0; i < core->n_devices; i++) {
        struct epd_device_info info;
        epd_device_info(core->device[i], &info);
        add_problem(out, &info);
    }
}

bool epd_status_counter(const struct epd_core *core, unsigned i, struct epd_status_counter *out)
{
    const struct epd_counters *c = &core->counters;
#define COUNTER_ROW(field, text) {#field, text, c->field},
    const struct epd_status_counter rows[] = {EPD_COUNTER_MAP(COUNTER_ROW)};
#undef COUNTER_ROW
    if (i >= EPD_ARRAY_LEN(rows))
        return false;
    *out = rows[i];
    return true;
}

/* From our own books: an engine's answer to a ping may be a second old. */
void epd_status_device(const struct epd_core *core, unsigned i, struct epd_device_info *out)
{
    struct epd_device *device = core->device[i];
    uint32_t cursor = 0;
    epd_device_info(device, out);
    out->chunks = out->chunk_bytes = out->seats = 0;
    for (const struct epd_chunk *c = core->chunks; c != NULL; c = c->next) {
        if (!epd_known_to(device, c->known[i]))
            continue;
        out->chunks++;
        out->chunk_bytes += c->bytes;
    }
    for (const struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        for (uint32_t r = 0; r < g->shape.ranks; r++)
            out->seats += g->device[r] == i && g->seat[r].lease != NULL;
}

const struct epd_fsm *epd_status_table(unsigned i)
{
    static const struct epd_fsm *const tables[] = {&epd_device_fsm, &epd_session_fsm,
                                                   &epd_group_fsm, &epd_lease_fsm};
    return i < EPD_ARRAY_LEN(tables) ? tables[i] : NULL;
}

/* ---- sessions ---- */

bool epd_status_session(const struct epd_core *core, uint32_t *cursor,
                        struct epd_status_session *out)
{
    const struct epd_session *s = epd_handles_next(&core->sessions, cursor);
    if (s == NULL)
        return false;
    *out = (struct epd_status_session){
        .id = s->id,
        .age_ms = (epd_now_ns() - s->created_ns) / 1000000u,
        .bytes = s->bytes,
        .name = s->name,
        .version = s->version,
        .state = epd_session_fsm.state_names[s->state],
        .uid = s->peer.uid,
        .pid = s->peer.pid,
        .leases = s->n_leases,
        .buffers = s->n_buffers,
    };
    return true;
}

/* ---- groups ---- */

void epd_status_of_group(const struct epd_group *g, struct epd_status_group *out)
{
    *out = (struct epd_status_group){
        .id = g->id,
        .name = g->name,
        .cause = g->cause_text,
        .state = epd_group_fsm.state_names[g->state],
        .shape = g->shape,
        .timeout_ms = g->timeout_ms,
        .first_timeout_ms = g->first_timeout_ms,
        .generation = g->generation,
        .ephemeral = g->ephemeral,
        .allow_absent = g->allow_absent,
        .has_key = g->has_key,
        .uid = g->uid,
        .failed_epochs = g->failed_epochs,
    };
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        const struct epd_seat *seat = &g->seat[r];
        const struct epd_lease *lease = seat->lease;
        out->seat[r] = (struct epd_status_seat){
            .rank = r,
            .device = g->device[r],
            .state = epd_lease_state_name(lease),
            .session = lease != NULL ? lease->session->id : 0,
            .pid = lease != NULL ? lease->session->peer.pid : 0,
            .ops = seat->ops,
            .wait_us = seat->wait_us,
            .work_us = seat->work_us,
        };
    }
}

bool epd_status_group(const struct epd_core *core, uint32_t *cursor, struct epd_status_group *out)
{
    const struct epd_group *g;
    do
        g = epd_handles_next(&core->groups, cursor);
    while (g != NULL && (g->state == EPD_GROUP_CREATING || g->state == EPD_GROUP_GONE));
    if (g == NULL)
        return false;
    epd_status_of_group(g, out);
    return true;
}

/* ---- the seats' counters ---- */

struct refresh {
    unsigned left; /* replies, the timer's close, and 1 until all are asked */
    bool answered;
    uv_timer_t timer;
    void (*done)(void *arg);
    void *arg;
};

struct question {
    struct refresh *refresh;
    struct epd_group *group; /* referenced */
    unsigned device;
};

static void put(struct refresh *r)
{
    if (--r->left == 0)
        free(r);
}

static void on_timer_closed(uv_handle_t *handle)
{
    put(handle->data);
}

static void answer(struct refresh *r)
{
    if (r->answered)
        return;
    r->answered = true;
    uv_close((uv_handle_t *)&r->timer, on_timer_closed);
    r->done(r->arg);
}

static void on_late(uv_timer_t *timer)
{
    answer(timer->data);
}

static void on_stats(void *arg, const struct epd_link_reply *reply)
{
    struct question *q = arg;
    struct epd_group *g = q->group;
    struct epd_msg_group_stats stats;
    if (reply->err == NULL && reply->msg->h.bytes >= sizeof(stats)) {
        memcpy(&stats, reply->msg, sizeof(stats));
        for (uint32_t r = 0; r < g->shape.ranks; r++) {
            if (g->device[r] != q->device)
                continue;
            g->seat[r].ops = stats.seat[r].ops;
            g->seat[r].wait_us = stats.seat[r].wait_us;
            g->seat[r].work_us = stats.seat[r].work_us;
        }
    }
    struct refresh *refresh = q->refresh;
    if (refresh->left == 2) /* the last reply; the timer is open */
        answer(refresh);
    put(refresh);
    epd_group_put(g);
    free(q);
}

static void ask(struct refresh *r, struct epd_group *g, unsigned device)
{
    struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_GROUP_STATS, .bytes = sizeof(msg)},
                                .group = g->id};
    if (!epd_known_to(g->core->device[device], g->set_in[device]))
        return;
    struct question *q = epd_must_calloc(sizeof(*q));
    *q = (struct question){.refresh = r, .group = g, .device = device};
    g->refs++;
    r->left++;
    (void)epd_device_request(g->core->device[device], &msg.h, NULL, 0, on_stats,
                             q); /* is configured */
}

void epd_status_refresh(struct epd_core *core, void (*done)(void *arg), void *arg)
{
    struct refresh *r = epd_must_calloc(sizeof(*r));
    uint32_t cursor = 0;
    *r = (struct refresh){.left = 1, .done = done, .arg = arg};
    (void)uv_timer_init(core->loop, &r->timer); /* cannot fail */
    r->timer.data = r;
    (void)uv_timer_start(&r->timer, on_late, EPD_STATUS_WAIT_MS, 0); /* has a callback */
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;) {
        if (g->state == EPD_GROUP_CREATING || g->state == EPD_GROUP_DROPPING)
            continue;
        EPD_FOR_DEVICES(d, g->devices)
        ask(r, g, d);
    }
    if (r->left == 1)
        answer(r);
}
