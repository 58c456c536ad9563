/* Commands for tests in which something dies: work until an op fails, then say when and how. */
#include <stdio.h>
#include <string.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"
#include "tests/support/proc.h"

#define WAIT_MS 25000

/* Take what is still in flight: each must come, and none may be good behind a group's failure. */
static bool drain(struct seat *s, struct agent_reply *reply)
{
    struct epd_result r;
    for (;;) {
        enum epd_status status = epd_wait(s->lease, (int64_t)slow_ms(WAIT_MS) * 1000000, &r);
        if (status == EPD_EINVAL)
            return true; /* nothing in flight */
        if (status == EPD_EDAEMONLOST || status == EPD_ESESSIONLOST)
            return true;
        if (status != EPD_OK) {
            (void)snprintf(reply->text, sizeof(reply->text), "drain: %s",
                           epd_status_string(status));
            return false;
        }
        reply->v[2]++;
    }
}

/* One op of the loop: false when it failed; reply says how. */
static bool one(struct seat *s, bool verify, struct agent_reply *reply)
{
    reply->status = epd_wait(s->lease, (int64_t)slow_ms(WAIT_MS) * 1000000, &reply->result);
    reply->ns = now_ns();
    if (reply->status != EPD_OK || reply->result.status != EPD_OK)
        return false;
    if (verify && !seat_verify(s, &reply->result, reply->text)) {
        reply->bad = 1;
        return false;
    }
    reply->v[0]++;
    return true;
}

AGENT_COMMAND(cmd_until_lost)
{
    struct seat *s = st->seat[cmd->slot];
    const bool verify = cmd->a[0] != 0;
    const uint64_t max = cmd->a[1] ? cmd->a[1] : UINT64_MAX;
    for (uint64_t n = 0; n < max; n++) {
        struct epd_ticket t = {0};
        reply->status = seat_dispatch(s, cmd->step + (uint32_t)n, NULL, &t);
        reply->ns = now_ns();
        if (reply->status != EPD_OK || !one(s, verify, reply))
            break;
        if (verify)
            seat_experts(s, t.epoch);
        reply->status = seat_combine(s, t.epoch, NULL, NULL);
        reply->ns = now_ns();
        if (reply->status != EPD_OK || !one(s, verify, reply))
            break;
    }
    if (!reply->bad && !drain(s, reply))
        reply->bad = 1;
    seat_forgive(s);
    if (!reply->bad)
        reply->bad = !seat_quiet(s, reply->text); /* guards are intact whatever happened */
}
