/* A ring in a memfd, a status page and a doorbell without a daemon: a lease whose engine is the
 * test itself, or a thread of it. Functions are static inline so that a test is one file. */
#ifndef EPD_TEST_CLIENT_FAKE_H
#define EPD_TEST_CLIENT_FAKE_H

#include <linux/futex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/internal.h"
#include "proto/version.h"

#define CHECK(cond) assert_true(cond)

struct fake {
    struct epd epd;
    struct epd_lease lease;
    struct epd_op dispatch, combine;
    struct epd_status_page *page;
    int daemon_end;  /* the daemon's end of the session connection */
    uint64_t posted; /* completions posted */
};

static inline void *fake_map(size_t bytes)
{
    int fd = memfd_create("fake", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    void *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(addr != MAP_FAILED);
    CHECK(close(fd) == 0);
    return addr;
}

/* A lease of rank 1 of 4, at most 8 tokens, generation 1, with a ring of `depth`. */
static inline void fake_init(struct fake *f, uint32_t depth)
{
    int pair[2];
    memset(f, 0, sizeof(*f));
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    epdc_owner_init(&f->epd.owner);
    CHECK(pthread_mutex_init(&f->epd.lock, NULL) == 0);
    f->epd.session_fd = pair[0];
    f->epd.daemon_fd = -1;
    f->daemon_end = pair[1];

    f->page = fake_map(EPD_STATUS_PAGE_BYTES);
    f->page->state = EPD_ENGINE_RUNNING;
    f->lease.page = f->page;
    f->lease.area = fake_map(epd_ring_bytes(depth));
    f->lease.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(f->lease.bell >= 0);
    f->lease.depth = depth;
    f->lease.generation = 1;
    f->lease.rank = 1;
    f->lease.owner = f->epd.owner;
    f->lease.epd = &f->epd;
    f->lease.shape = (struct epd_shape){.ranks = 4,
                                        .experts = 8,
                                        .max_tokens = 8,
                                        .topk = 2,
                                        .hidden = 16,
                                        .dtype = EPD_DTYPE_FP32,
                                        .mode = EPD_MODE_LL,
                                        .layout = EPD_LAYOUT_EXPERT_MAJOR};
    f->dispatch = (struct epd_op){.lease = &f->lease,
                                  .kind = EPD_OP_DISPATCH,
                                  .sets = 2,
                                  .desc_index = 3,
                                  .desc_generation = 7};
    f->combine = (struct epd_op){.lease = &f->lease,
                                 .kind = EPD_OP_COMBINE,
                                 .sets = 2,
                                 .desc_index = 4,
                                 .desc_generation = 8,
                                 .has_control = true};
}

static inline void fake_fini(struct fake *f)
{
    CHECK(munmap(f->lease.area, epd_ring_bytes(f->lease.depth)) == 0);
    CHECK(munmap(f->page, EPD_STATUS_PAGE_BYTES) == 0);
    CHECK(close(f->lease.bell) == 0 && close(f->epd.session_fd) == 0);
    if (f->daemon_end >= 0)
        CHECK(close(f->daemon_end) == 0);
    CHECK(pthread_mutex_destroy(&f->epd.lock) == 0);
}

/* What an engine does: the next entry, or NULL while it is not submitted. */
static inline const struct epd_entry *fake_next(struct fake *f)
{
    struct epd_entry *e = epd_ring_entry(f->lease.area, f->lease.depth, f->posted);
    return __atomic_load_n(&e->seq, __ATOMIC_SEQ_CST) == f->posted + 1 ? e : NULL;
}

/* Complete the next ticket with *c; seq is filled here. */
static inline void fake_post_completion(struct fake *f, const struct epd_completion *c)
{
    struct epd_ring_header *h = epd_ring_header_at(f->lease.area);
    struct epd_completion *slot = epd_ring_completion(f->lease.area, f->lease.depth, f->posted);
    memcpy(slot, c, offsetof(struct epd_completion, seq));
    __atomic_store_n(&slot->seq, f->posted + 1, __ATOMIC_RELEASE);
    f->posted++;
    __atomic_store_n(&h->completed, f->posted, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&h->waiters, __ATOMIC_SEQ_CST) != 0)
        (void)syscall(SYS_futex, (uint32_t *)(void *)&h->completed, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Complete the next entry, which is submitted; success consumes the epoch. */
static inline void fake_post(struct fake *f, enum epd_status status)
{
    const struct epd_entry *e = fake_next(f);
    CHECK(e != NULL);
    struct epd_completion c = {.epoch = e->epoch,
                               .tag = e->tag,
                               .kind = e->kind,
                               .status = status,
                               .rank = -1,
                               .other_rank = -1,
                               .generation = 1,
                               .flags = status == EPD_OK ? EPD_COMPLETION_EPOCH_CONSUMED : 0};
    fake_post_completion(f, &c);
}

/* Times the doorbell was rung since the last call. */
static inline uint64_t fake_bells(struct fake *f)
{
    uint64_t n = 0;
    return read(f->lease.bell, &n, sizeof(n)) == (ssize_t)sizeof(n) ? n : 0;
}

static inline enum epd_status fake_dispatch(struct fake *f, struct epd_ticket *ticket)
{
    const struct epd_submit submit = EPD_SUBMIT_INIT;
    return epd_dispatch(&f->dispatch, &submit, ticket);
}

static inline int64_t fake_now_ms(void)
{
    struct timespec ts;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
