#include "daemon/engine/ring.h"

#include "daemon/engine/group_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The area is shared with an untrusted client: every access is an atomic word access, and a value
 * read is used at most as a hint or copied before it is validated. */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void futex_wake(uint64_t *word)
{
    /* Low half of a little-endian word; shared futex: client and engine are two processes. */
    (void)syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void wake_waiters(struct epd_ring_header *header)
{
    if (__atomic_load_n(&header->waiters, __ATOMIC_SEQ_CST) != 0)
        futex_wake(&header->completed);
}

void epd_ring_set_generation(struct epd_seat *seat)
{
    struct epd_ring_header *header = epd_ring_header_at(seat->ring);
    __atomic_store_n(&header->generation, seat->group->generation, __ATOMIC_RELEASE);
}

void epd_ring_attach(struct epd_seat *seat, bool replay)
{
    struct epd_ring_header *header = epd_ring_header_at(seat->ring);
    header->magic = EPD_RING_MAGIC;
    header->abi = EPD_ABI_VERSION;
    header->depth = seat->depth;
    if (!replay) {
        memset(seat->ring + EPD_RING_HEADER_BYTES, 0,
               epd_ring_bytes(seat->depth) - EPD_RING_HEADER_BYTES);
        __atomic_store_n(&header->completed, 0, __ATOMIC_SEQ_CST);
    }
    seat->posted = load(&header->completed);
    seat->taken = seat->posted;
    __atomic_store_n(&header->released_epoch, 0, __ATOMIC_RELEASE);
    epd_ring_set_generation(seat);
}

bool epd_ring_has_entry(const struct epd_seat *seat)
{
    const struct epd_entry *slot = epd_ring_entry(seat->ring, seat->depth, seat->taken);
    return __atomic_load_n(&slot->seq, __ATOMIC_SEQ_CST) == seat->taken + 1;
}

bool epd_ring_peek(const struct epd_seat *seat, struct epd_entry *out)
{
    const struct epd_entry *slot = epd_ring_entry(seat->ring, seat->depth, seat->taken);
    if (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != seat->taken + 1)
        return false;
    const uint64_t *from = (const uint64_t *)(const void *)slot;
    uint64_t words[sizeof(*out) / sizeof(uint64_t)];
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        words[i] = load(&from[i]);
    memcpy(out, words, sizeof(*out));
    return true;
}

static struct epd_completion completion_of(const struct epd_op *op)
{
    const struct epd_seat *seat = op->seat;
    uint64_t total_ns = seat->group->engine->now_ns - op->taken_ns;
    uint64_t wait_ns = total_ns > op->busy_ns ? total_ns - op->busy_ns : 0;
    return (struct epd_completion){
        .epoch = op->entry.epoch,
        .released_epoch = seat->released_epoch,
        .tag = op->entry.tag,
        .kind = op->entry.kind,
        .flags = op->consumed ? EPD_COMPLETION_EPOCH_CONSUMED : 0,
        .phase = op->cause.phase,
        .field = op->cause.field,
        .status = op->cause.status,
        .rank = op->cause.status != 0 ? op->cause.rank : -1,
        .other_rank = op->cause.status != 0 ? op->cause.other_rank : -1,
        .generation = seat->group->generation,
        .rows = op->rows,
        .wait_us = (uint32_t)(wait_ns / 1000u),
        .work_us = (uint32_t)(total_ns / 1000u),
        .value = op->cause.value,
    };
}

static void store_completion(struct epd_seat *seat, const struct epd_completion *c)
{
    struct epd_completion *slot = epd_ring_completion(seat->ring, seat->depth, seat->posted);
    uint64_t words[sizeof(*c) / sizeof(uint64_t)];
    uint64_t *to = (uint64_t *)(void *)slot;
    memcpy(words, c, sizeof(words));
    for (unsigned i = 0; i + 1 < sizeof(words) / sizeof(words[0]); i++)
        __atomic_store_n(&to[i], words[i], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->seq, seat->posted + 1, __ATOMIC_RELEASE);
}

static void store_notify(const struct epd_op *op)
{
    if ((op->entry.flags & EPD_ENTRY_NOTIFY) == 0 || op->desc == NULL)
        return;
    uint8_t *control = op->desc->array[EPD_ARRAY_CONTROL].base;
    uint64_t *word = (uint64_t *)(void *)(control + op->entry.notify_offset);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

void epd_ring_post(struct epd_seat *seat, struct epd_op *op)
{
    struct epd_ring_header *header = epd_ring_header_at(seat->ring);
    struct epd_completion c = completion_of(op);
    store_completion(seat, &c);
    store_notify(op);
    seat->posted++;
    seat->ops++;
    seat->wait_us += c.wait_us;
    seat->work_us += c.work_us;
    seat->rows += c.rows;
    seat->group->engine->ops++;
    __atomic_store_n(&header->released_epoch, seat->released_epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&header->completed, seat->posted, __ATOMIC_SEQ_CST);
    wake_waiters(header);
    op->state = EPD_OP_FREE;
    op->turn = NULL;
    op->desc = NULL;
}
