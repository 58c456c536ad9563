#define EPD_LOG_COMPONENT "epoch"
#include "daemon/core/epoch.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/change.h"
#include "daemon/core/group.h"
#include "daemon/core/must.h"

/* One failing epoch. */
struct failing {
    struct epd_group *group; /* referenced */
    uint64_t change;         /* of the group when it began: another one makes this void */
    struct epd_msg_epoch msg;
    unsigned left;      /* replies, and 1 until all are asked */
    uint32_t unrevoked; /* bit d: has not answered */
    uv_timer_t timer;
};

struct step {
    struct failing *failing;
    unsigned device;
};

static bool current(const struct failing *f)
{
    return f->change == f->group->change && epd_group_stable(f->group);
}

static void describe(const struct epd_msg_epoch *m, char *text, size_t cap)
{
    const char *name = epd_status_text((enum epd_status)m->status);
    if (m->other_rank >= 0)
        (void)snprintf(text, cap, "epoch %llu: %s (ranks %d and %d)", (unsigned long long)m->epoch,
                       name, m->rank, m->other_rank);
    else
        (void)snprintf(text, cap, "epoch %llu: %s (rank %d)", (unsigned long long)m->epoch, name,
                       m->rank);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct failing *f = handle->data;
    epd_group_put(f->group);
    free(f);
}

static void tell_all(struct failing *f)
{
    struct epd_group *g = f->group;
    char text[160];
    describe(&f->msg, text, sizeof(text));
    EPD_FOR_DEVICES(d, g->devices)
    {
        struct epd_msg_epoch msg = f->msg;
        msg.h = (struct epd_msg_header){.type = EPD_MSG_FAIL, .bytes = sizeof(msg)};
        /* An engine that is lost now gets a generation change instead. */
        (void)epd_device_request(g->core->device[d], &msg.h, NULL, 0, NULL, NULL);
    }
    g->failed_epochs++;
    g->core->counters.failed_epochs++;
    log_info("group %s: %s", g->name, text);
    epd_events_add(g->core->events, "epoch", g->name, "%s", text);
}

static void put(struct failing *f)
{
    if (--f->left > 0)
        return;
    (void)uv_timer_stop(&f->timer); /* always succeeds */
    if (current(f))
        tell_all(f);
    uv_close((uv_handle_t *)&f->timer, on_timer_closed);
}

static void on_reply(void *arg, const struct epd_link_reply *reply)
{
    struct step *s = arg;
    struct failing *f = s->failing;
    f->unrevoked &= ~(1u << s->device);
    if (reply->err != NULL && reply->msg != NULL && current(f)) {
        const struct epd_cause cause = {.status = (enum epd_status)f->msg.status,
                                        .rank = f->msg.rank,
                                        .other_rank = f->msg.other_rank};
        epd_change_begin(f->group, &cause, "an engine could not revoke a single epoch");
    }
    free(s);
    put(f);
}

static void on_late(uv_timer_t *timer)
{
    struct failing *f = timer->data;
    EPD_FOR_DEVICES(d, f->unrevoked)
    {
        f->group->core->counters.revoke_kills++;
        epd_device_kill(f->group->core->device[d], "engine did not stop writing within revoke_ms");
    }
}

static void begin(struct epd_group *g, const struct epd_msg_epoch *msg)
{
    struct failing *f = epd_must_calloc(sizeof(*f));
    f->group = g;
    g->refs++;
    f->change = g->change;
    f->msg = *msg;
    f->left = 1;
    (void)uv_timer_init(g->core->loop, &f->timer); /* cannot fail */
    f->timer.data = f;
    (void)uv_timer_start(&f->timer, on_late, g->core->config->revoke_ms, 0); /* has a callback */
    EPD_FOR_DEVICES(d, g->devices)
    {
        struct epd_msg_epoch revoke = f->msg;
        struct step *s = epd_must_calloc(sizeof(*s));
        *s = (struct step){.failing = f, .device = d};
        revoke.h = (struct epd_msg_header){.type = EPD_MSG_REVOKE, .bytes = sizeof(revoke)};
        /* A device that is down makes a generation change. */
        if (epd_device_request(g->core->device[d], &revoke.h, NULL, 0, on_reply, s) == EPD_OK) {
            f->left++;
            f->unrevoked |= 1u << d;
        } else {
            free(s);
        }
    }
    put(f);
}

static bool known(const struct epd_group *g, uint64_t epoch)
{
    const unsigned n = g->n_failing < EPD_FAILED_RECENT ? g->n_failing : EPD_FAILED_RECENT;
    for (unsigned i = 0; i < n; i++)
        if (g->failing[i] == epoch)
            return true;
    return false;
}

void epd_epoch_report(struct epd_core *core, const struct epd_msg_epoch *msg)
{
    struct epd_group *g;
    if (epd_group_get(core, msg->group, &g, NULL) != EPD_OK || !epd_group_stable(g) ||
        msg->generation != g->generation)
        return;
    if (msg->epoch == EPD_EPOCH_ALL) {
        const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
        epd_change_begin(g, &cause, "the epoch number starts again");
        return;
    }
    if (known(g, msg->epoch))
        return;
    g->failing[g->n_failing++ % EPD_FAILED_RECENT] = msg->epoch;
    begin(g, msg);
}
