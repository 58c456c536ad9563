/* GetStatus in an agent. */
#include <stdio.h>
#include <stdlib.h>

#include "client/admin.h"
#include "proto/control.pb-c.h"
#include "tests/support/agent_internal.h"
#include "tests/support/proc.h"

static void take(struct agent_reply *reply, const Epd__V1__StatusReply *s)
{
    reply->v[0] = s->pid;
    reply->v[1] = s->sessions;
    reply->v[2] = s->groups;
    reply->v[3] = s->n_devices;
    (void)snprintf(reply->text, sizeof(reply->text), "%s", s->state);
    for (size_t i = 0; i < s->n_devices && i < 4; i++) {
        const Epd__V1__Device *d = s->devices[i];
        struct agent_device *out = &reply->device[i];
        *out = (struct agent_device){
            .pid = d->pid,
            .restarts = d->restarts,
            .seats = d->seats,
            .incarnation = d->incarnation,
            .chunks = d->chunks,
            .chunk_bytes = d->chunk_bytes,
            .ops = d->ops,
        };
        (void)snprintf(out->state, sizeof(out->state), "%s", d->state);
    }
}

AGENT_COMMAND(cmd_status)
{
    (void)cmd;
    uint8_t *data = NULL;
    size_t len = 0;
    struct epd_admin *admin = NULL;
    reply->status = epd_admin_open(st->socket, &admin, &reply->err);
    if (reply->status != EPD_OK)
        return;
    reply->status = epd_admin_call(admin, "GetStatus", NULL, 0, (int64_t)slow_ms(5000) * 1000000,
                                   &data, &len, &reply->err);
    if (reply->status == EPD_OK) {
        Epd__V1__StatusReply *s = epd__v1__status_reply__unpack(NULL, len, data);
        reply->bad = s == NULL;
        if (s)
            take(reply, s);
        epd__v1__status_reply__free_unpacked(s, NULL);
    }
    free(data);
    epd_admin_close(admin);
}
