#include "daemon/core/join.h"

#include <stdlib.h>

#include "daemon/core/must.h"

struct epd_join {
    unsigned left; /* replies, and 1 until sealed */
    bool ignore_lost;
    struct epd_error err;
    epd_done_fn done;
    void *arg;
};

struct epd_join *epd_join_create(bool ignore_lost, epd_done_fn done, void *arg)
{
    struct epd_join *join = epd_must_calloc(sizeof(*join));
    *join = (struct epd_join){.left = 1, .ignore_lost = ignore_lost, .done = done, .arg = arg};
    return join;
}

static void put(struct epd_join *join)
{
    if (--join->left > 0)
        return;
    join->done(join->arg, join->err.status == EPD_OK ? NULL : &join->err);
    free(join);
}

static void note(struct epd_join *join, const struct epd_error *err)
{
    if (err->status == EPD_EDEVICE && join->ignore_lost)
        return;
    if (join->err.status == EPD_OK)
        join->err = *err;
}

static void on_reply(void *arg, const struct epd_link_reply *reply)
{
    struct epd_join *join = arg;
    if (reply->err != NULL)
        note(join, reply->err);
    put(join);
}

void epd_join_request(struct epd_join *join, struct epd_device *device, struct epd_msg_header *msg,
                      int fd)
{
    struct epd_error err;
    if (epd_device_request(device, msg, &fd, fd >= 0, on_reply, join) == EPD_OK) {
        join->left++;
        return;
    }
    (void)epd_fail(&err, EPD_EDEVICE, "device %u is %s; try again when it runs",
                   epd_device_index(device), epd_device_state_name(device));
    note(join, &err);
}

void epd_join_seal(struct epd_join *join)
{
    put(join);
}
