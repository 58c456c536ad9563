/* Waiting for completions. Order of looks: the ring first, always, so that what was posted before
 * a death is still returned; then who died; then sleep, in slices, on the ring's completion count.
 * Nothing here can hang: a slice is at most SLICE_NS, after each one daemon and engine are looked
 * at, and an engine that is down for RESTART_NS is given up. */
#include "client/internal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 50000000ull
#define RESTART_NS 10000000000ull /* longer than the supervisor's restart with its back-off */
#define LOOKS_PER_CLOCK 32        /* ring looks between two clock reads while spinning */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex is the low half of a word");

static uint64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail; no system call (vDSO) */
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* EPD_OK: completion of `ticket` is there. EPD_EAGAIN: not yet. EPD_EINTERNAL: damaged ring. */
static enum epd_status look(const struct epd_lease *lease, uint64_t ticket)
{
    int posted = epdc_ring_posted(lease, ticket);
    return posted > 0 ? EPD_OK : posted == 0 ? EPD_EAGAIN : EPD_EINTERNAL;
}

/* Why no completion will come, or EPD_OK. */
static enum epd_status check_alive(struct epd_lease *lease, uint64_t now)
{
    lease->checked_ns = now;
    enum epd_status lost = epdc_session_lost(lease->epd);
    if (lost != EPD_OK)
        return lost;
    uint32_t state = __atomic_load_n(&lease->page->state, __ATOMIC_ACQUIRE);
    if (state == EPD_ENGINE_DAEMON_LOST)
        return epdc_session_lose(lease->epd, EPD_EDAEMONLOST);
    lost = epdc_session_probe(lease->epd);
    if (lost != EPD_OK)
        return lost;

    /* Down: the next incarnation adopts the ring and completes what is in it. */
    if (state != EPD_ENGINE_DEAD && state != EPD_ENGINE_STOPPED) {
        lease->dead_ns = 0;
        return EPD_OK;
    }
    if (lease->dead_ns == 0)
        lease->dead_ns = now;
    return now - lease->dead_ns >= RESTART_NS ? EPD_EDEVICE : EPD_OK;
}

/* After a death was seen: a completion that was posted before it wins. */
static enum epd_status last_look(const struct epd_lease *lease, uint64_t ticket,
                                 enum epd_status why)
{
    return look(lease, ticket) == EPD_OK ? EPD_OK : why;
}

static enum epd_status spin(const struct epd_lease *lease, uint64_t ticket, uint64_t until_ns)
{
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            enum epd_status status = look(lease, ticket);
            if (status != EPD_EAGAIN)
                return status;
            cpu_relax();
        }
    } while (now_ns() < until_ns);
    return EPD_EAGAIN;
}

/* Sleep until a completion is posted, or ns passed, or a spurious wake-up. */
static void sleep_on(struct epd_lease *lease, uint64_t ticket, uint64_t ns)
{
    struct epd_ring_header *header = epd_ring_header_at(lease->area);
    struct timespec ts = {.tv_sec = 0, .tv_nsec = (long)ns}; /* at most a slice */

    /* Pairs with the engine: completed = n, then a look at waiters. One of us sees the other. */
    __atomic_store_n(&header->waiters, 1u, __ATOMIC_SEQ_CST);
    uint64_t completed = __atomic_load_n(&header->completed, __ATOMIC_SEQ_CST);
    if (completed <= ticket) {
        uint32_t *word = (uint32_t *)(void *)&header->completed;
        /* Any result is a reason to look again. */
        (void)syscall(SYS_futex, word, FUTEX_WAIT, (uint32_t)completed, &ts, NULL, 0);
    }
    __atomic_store_n(&header->waiters, 0u, __ATOMIC_RELAXED);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static enum epd_status wait_slices(struct epd_lease *lease, uint64_t ticket, uint64_t deadline)
{
    for (;;) {
        uint64_t now = now_ns();
        if (now >= deadline)
            return last_look(lease, ticket, EPD_ETIMEDOUT);
        sleep_on(lease, ticket, min_u64(SLICE_NS, deadline - now));
        enum epd_status status = look(lease, ticket);
        if (status != EPD_EAGAIN)
            return status;

        now = now_ns();
        if (now - lease->checked_ns < SLICE_NS)
            continue;
        status = check_alive(lease, now);
        if (status != EPD_OK)
            return last_look(lease, ticket, status);
        /* Covers a bell that rang for an engine that died before it heard it. */
        epdc_ring_bell(lease);
    }
}

/* Until the completion of `ticket`, which is submitted and not consumed, is there. */
static enum epd_status wait_posted(struct epd_lease *lease, uint64_t ticket, int64_t timeout_ns)
{
    enum epd_status status = look(lease, ticket);
    if (status != EPD_EAGAIN)
        return status;
    enum epd_status lost = epdc_session_lost(lease->epd);
    if (lost != EPD_OK)
        return last_look(lease, ticket, lost);

    uint64_t now = now_ns();
    uint64_t deadline = timeout_ns < 0 ? UINT64_MAX : now + (uint64_t)timeout_ns;
    if (timeout_ns == 0 && now - lease->checked_ns >= SLICE_NS) {
        status = check_alive(lease, now);
        return last_look(lease, ticket, status == EPD_OK ? EPD_ETIMEDOUT : status);
    }
    if (lease->epd->spin_ns != 0) {
        status = spin(lease, ticket, min_u64(now + lease->epd->spin_ns, deadline));
        if (status != EPD_EAGAIN)
            return status;
    }
    return wait_slices(lease, ticket, deadline);
}

enum epd_status epd_poll(struct epd_lease *lease, struct epd_result *out)
{
    if (!lease || !out)
        return EPD_EINVAL;
    if (epdc_owner_forked_fast(&lease->owner))
        return EPD_EFORKED;
    enum epd_status status = EPD_EAGAIN;
    if (lease->consumed != lease->submitted)
        status = look(lease, lease->consumed);
    if (status == EPD_OK)
        epdc_ring_consume(lease, out);
    if (status != EPD_EAGAIN)
        return status;

    /* So that a caller who only polls learns of a death too: one probe a slice. */
    uint64_t now = now_ns();
    enum epd_status lost = epdc_session_lost(lease->epd);
    if (lost == EPD_OK && now - lease->checked_ns >= SLICE_NS)
        lost = check_alive(lease, now);
    if (lost == EPD_OK)
        return EPD_EAGAIN;
    if (lease->consumed == lease->submitted || look(lease, lease->consumed) != EPD_OK)
        return lost;
    epdc_ring_consume(lease, out);
    return EPD_OK;
}

enum epd_status epd_wait(struct epd_lease *lease, int64_t timeout_ns, struct epd_result *out)
{
    if (!lease || !out)
        return EPD_EINVAL;
    if (epdc_owner_forked_fast(&lease->owner))
        return EPD_EFORKED;
    if (lease->consumed == lease->submitted)
        return EPD_EINVAL; /* nothing in flight: it would be for ever */
    enum epd_status status = wait_posted(lease, lease->consumed, timeout_ns);
    if (status == EPD_OK)
        epdc_ring_consume(lease, out);
    return status;
}

enum epd_status epd_wait_ticket(struct epd_lease *lease, uint64_t ticket, int64_t timeout_ns,
                                struct epd_result *out)
{
    if (!lease || !out)
        return EPD_EINVAL;
    if (epdc_owner_forked_fast(&lease->owner))
        return EPD_EFORKED;
    if (ticket < lease->consumed || ticket >= lease->submitted)
        return EPD_EINVAL;
    /* Completions come in order: when this one is there, all before it are, and a timeout has
     * consumed nothing. */
    enum epd_status status = wait_posted(lease, ticket, timeout_ns);
    if (status != EPD_OK)
        return status;

    struct epd_result first = {.status = EPD_OK};
    while (lease->consumed <= ticket) {
        struct epd_result r;
        epdc_ring_consume(lease, &r);
        if (first.status == EPD_OK)
            first = r;
    }
    *out = first;
    return EPD_OK;
}
