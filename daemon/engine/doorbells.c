#include "daemon/engine/doorbells.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/util.h"

struct bell {
    struct bell *link;
    int fd;
    bool owned; /* a seat's: closed on removal */
    uint64_t group;
    uint32_t rank;
};

struct epd_doorbells {
    int epoll;
    struct bell *bells;
};

enum epd_status epd_doorbells_create(struct epd_doorbells **out, struct epd_error *err)
{
    struct epd_doorbells *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the doorbells");
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (d->epoll < 0) {
        free(d);
        return epd_fail_errno(err, "epoll_create1");
    }
    *out = d;
    return EPD_OK;
}

static void bell_free(struct epd_doorbells *d, struct bell *bell)
{
    (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, bell->fd, NULL); /* it was added */
    if (bell->owned)
        epd_close_fd(&bell->fd);
    free(bell);
}

void epd_doorbells_destroy(struct epd_doorbells *d)
{
    if (d == NULL)
        return;
    while (d->bells != NULL) {
        struct bell *bell = d->bells;
        d->bells = bell->link;
        bell_free(d, bell);
    }
    epd_close_fd(&d->epoll);
    free(d);
}

static enum epd_status add(struct epd_doorbells *d, const struct bell *what, bool edge,
                           struct epd_error *err)
{
    struct bell *bell = malloc(sizeof(*bell));
    if (bell == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a doorbell");
    *bell = *what;
    struct epoll_event event = {.events = (uint32_t)EPOLLIN | (edge ? (uint32_t)EPOLLET : 0u)};
    if (epoll_ctl(d->epoll, EPOLL_CTL_ADD, bell->fd, &event) != 0) {
        free(bell);
        return epd_fail_errno(err, "epoll_ctl of a doorbell");
    }
    bell->link = d->bells;
    d->bells = bell;
    return EPD_OK;
}

enum epd_status epd_doorbells_watch(struct epd_doorbells *d, int fd, bool edge,
                                    struct epd_error *err)
{
    return add(d, &(struct bell){.fd = fd}, edge, err);
}

enum epd_status epd_doorbells_add(struct epd_doorbells *d, uint64_t group, uint32_t rank, int *fd,
                                  struct epd_error *err)
{
    epd_doorbells_remove(d, group, (int32_t)rank);
    const struct bell bell = {.fd = *fd, .owned = true, .group = group, .rank = rank};
    enum epd_status status = add(d, &bell, true, err);
    if (status == EPD_OK)
        *fd = -1;
    return status;
}

void epd_doorbells_remove(struct epd_doorbells *d, uint64_t group, int32_t rank)
{
    for (struct bell **at = &d->bells; *at != NULL;) {
        struct bell *bell = *at;
        if (bell->owned && bell->group == group && (rank < 0 || bell->rank == (uint32_t)rank)) {
            *at = bell->link;
            bell_free(d, bell);
        } else
            at = &bell->link;
    }
}

void epd_doorbells_sleep(struct epd_doorbells *d, uint64_t timeout_ns)
{
    struct epoll_event events[32];
    /* Round up: a deadline that is a fraction of a millisecond away must not become a busy loop. */
    int ms = timeout_ns == UINT64_MAX             ? -1
             : timeout_ns / 1000000u >= INT32_MAX ? INT32_MAX
                                                  : (int)((timeout_ns + 999999u) / 1000000u);
    /* Who rang does not matter: the scheduler looks at everything. EINTR is one more wake-up. */
    (void)epoll_wait(d->epoll, events, (int)EPD_ARRAY_LEN(events), ms);
}
