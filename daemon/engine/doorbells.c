#include "daemon/engine/doorbells.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/util.h"

struct bell {
    struct bell *link;
    int fd;
    int owned;   /* a seat's: closed on removal */
    int eventfd; /* drain on wake-up */
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

static enum epd_status add(struct epd_doorbells *d, const struct bell *what, struct epd_error *err)
{
    struct bell *bell = malloc(sizeof(*bell));
    if (bell == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a doorbell");
    *bell = *what;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = bell};
    if (epoll_ctl(d->epoll, EPOLL_CTL_ADD, bell->fd, &event) != 0) {
        free(bell);
        return epd_fail_errno(err, "epoll_ctl of a doorbell");
    }
    bell->link = d->bells;
    d->bells = bell;
    return EPD_OK;
}

enum epd_status epd_doorbells_watch(struct epd_doorbells *d, int fd, int eventfd,
                                    struct epd_error *err)
{
    return add(d, &(struct bell){.fd = fd, .eventfd = eventfd}, err);
}

enum epd_status epd_doorbells_add(struct epd_doorbells *d, uint64_t group, uint32_t rank, int *fd,
                                  struct epd_error *err)
{
    epd_doorbells_remove(d, group, (int32_t)rank);
    enum epd_status status = add(
        d, &(struct bell){.fd = *fd, .owned = 1, .eventfd = 1, .group = group, .rank = rank}, err);
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
    int n = epoll_wait(d->epoll, events, (int)EPD_ARRAY_LEN(events), ms);
    for (int i = 0; i < n; i++) {
        const struct bell *bell = events[i].data.ptr;
        uint64_t count;
        if (bell->eventfd)
            (void)!read(bell->fd, &count, sizeof(count)); /* may have been drained already */
    }
}
