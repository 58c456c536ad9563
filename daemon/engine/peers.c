#include "daemon/engine/peers.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/ipc/memfd.h"

struct peer {
    bool known;
    const struct epd_status_page *status; /* owned mapping, read-only */
    struct epd_bell *bells;               /* owned mapping of the peer's page */
    int doorbell;                         /* owned */
    uint64_t count;                       /* our line there */
};

struct epd_peers {
    uint32_t device;
    uint32_t dirty; /* bit d: something was published to device d */
    int doorbell, bell_fd;
    struct epd_bell *bells; /* owned mapping of our page */
    uint64_t heard[EPD_MAX_DEVICES];
    struct peer peer[EPD_MAX_DEVICES];
};

_Static_assert(sizeof(struct epd_bell) * EPD_MAX_DEVICES <= EPD_BELL_BYTES, "bells fit one page");

enum epd_status epd_peers_create(uint32_t device, struct epd_peers **out, struct epd_error *err)
{
    struct epd_peers *p = calloc(1, sizeof(*p));
    void *base = NULL;
    if (p == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the peers");
    p->device = device;
    p->bell_fd = p->doorbell = -1;
    for (unsigned i = 0; i < EPD_MAX_DEVICES; i++)
        p->peer[i].doorbell = -1;
    enum epd_status status = epd_memfd_create("epd-bells", EPD_BELL_BYTES, true, &p->bell_fd, err);
    if (status == EPD_OK)
        status = epd_memfd_map(p->bell_fd, EPD_BELL_BYTES, true, &base, err);
    p->bells = base;
    if (status == EPD_OK && (p->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        status = epd_fail_errno(err, "eventfd of the doorbell");
    if (status != EPD_OK) {
        epd_peers_destroy(p);
        return status;
    }
    *out = p;
    return EPD_OK;
}

void epd_peers_gone(struct epd_peers *peers, uint32_t device)
{
    struct peer *p = &peers->peer[device];
    epd_memfd_unmap((void *)(uintptr_t)p->status, EPD_STATUS_PAGE_BYTES);
    epd_memfd_unmap(p->bells, EPD_BELL_BYTES);
    epd_close_fd(&p->doorbell);
    *p = (struct peer){.doorbell = -1};
}

void epd_peers_destroy(struct epd_peers *peers)
{
    if (peers == NULL)
        return;
    for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++)
        epd_peers_gone(peers, d);
    epd_memfd_unmap(peers->bells, EPD_BELL_BYTES);
    epd_close_fd(&peers->bell_fd);
    epd_close_fd(&peers->doorbell);
    free(peers);
}

int epd_peers_doorbell_fd(const struct epd_peers *peers)
{
    return peers->doorbell;
}
int epd_peers_bell_fd(const struct epd_peers *peers)
{
    return peers->bell_fd;
}

enum epd_status epd_peers_set(struct epd_peers *peers, uint32_t device, int fds[3],
                              struct epd_error *err)
{
    void *status_page = NULL, *bells = NULL;
    if (device >= EPD_MAX_DEVICES || device == peers->device)
        return epd_fail(err, EPD_EINVAL, "peer device %u", device);
    enum epd_status status = epd_memfd_map(fds[0], EPD_STATUS_PAGE_BYTES, false, &status_page, err);
    if (status == EPD_OK)
        status = epd_memfd_map(fds[2], EPD_BELL_BYTES, true, &bells, err);
    if (status != EPD_OK) {
        epd_memfd_unmap(status_page, EPD_STATUS_PAGE_BYTES);
        return status;
    }
    epd_peers_gone(peers, device);
    peers->peer[device] = (struct peer){
        .known = true,
        .status = status_page,
        .bells = bells,
        .doorbell = epd_steal_fd(&fds[1]),
        /* Go on from what an earlier incarnation of ours left there: starting anew could store the
         * value that the peer has seen last, and the bell would not be heard. */
        .count =
            __atomic_load_n(&((struct epd_bell *)bells)[peers->device].count, __ATOMIC_RELAXED),
    };
    epd_close_fd(&fds[0]);
    epd_close_fd(&fds[2]);
    /* What was published while the peer was away (or while it was new) deserves a look. */
    peers->dirty |= 1u << device;
    return EPD_OK;
}

void epd_engine_publish_to(struct epd_engine *engine, uint32_t device)
{
    engine->peers->dirty |= 1u << device;
}

bool epd_peers_flush(struct epd_peers *peers)
{
    const uint32_t dirty = peers->dirty;
    peers->dirty = 0;
    for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++) {
        struct peer *p = &peers->peer[d];
        if ((dirty >> d & 1u) == 0 || !p->known)
            continue;
        __atomic_store_n(&p->bells[peers->device].count, ++p->count, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&p->status->sleeping, __ATOMIC_SEQ_CST) != 0)
            (void)eventfd_write(p->doorbell, 1); /* full means that it will wake anyway */
    }
    return (dirty >> peers->device & 1u) != 0;
}

void epd_peers_listen(struct epd_peers *peers)
{
    for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++)
        peers->heard[d] = __atomic_load_n(&peers->bells[d].count, __ATOMIC_ACQUIRE);
}

bool epd_peers_rang(const struct epd_peers *peers)
{
    for (uint32_t d = 0; d < EPD_MAX_DEVICES; d++)
        if (__atomic_load_n(&peers->bells[d].count, __ATOMIC_SEQ_CST) != peers->heard[d])
            return true;
    return false;
}
