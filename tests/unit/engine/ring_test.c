/* Posting a completion: what a client may see when, and that it is woken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/engine/group_internal.h"
#include "daemon/engine/ring.h"
#include "tests/support/trap.h"

#define DEPTH 256u

static struct {
    struct epd_engine engine;
    struct epd_group group;
    struct epd_seat seat;
    struct epd_desc desc;
    struct epd_ring_header *header;
    uint64_t *control;
    uint64_t completed, notified; /* as seen when the completion was about to be written */
} g;

static void setup_ring(void)
{
    memset(&g, 0, sizeof(g));
    uint8_t *area = trap_pages(epd_ring_bytes(DEPTH) / TRAP_PAGE + 1);
    assert_non_null(area);
    g.group = (struct epd_group){.engine = &g.engine, .generation = 3};
    g.seat.group = &g.group;
    g.seat.ring = area;
    g.seat.depth = DEPTH;
    g.header = epd_ring_header_at(area);
    g.control = (void *)(area + epd_ring_bytes(DEPTH));
    g.desc.array[EPD_ARRAY_CONTROL] = (struct epd_array_map){.base = (void *)g.control};
    epd_ring_attach(&g.seat, false);
}
static void end_ring(void)
{
    (void)munmap(g.seat.ring, epd_ring_bytes(DEPTH) + TRAP_PAGE);
}

static void post(uint64_t epoch, int status)
{
    struct epd_op *op = &g.seat.op[g.seat.posted % EPD_OP_WINDOW];
    *op = (struct epd_op){.seat = &g.seat, .desc = &g.desc, .state = EPD_OP_DONE};
    op->entry = (struct epd_entry){.epoch = epoch,
                                   .tag = 7,
                                   .kind = EPD_OP_DISPATCH,
                                   .flags = EPD_ENTRY_NOTIFY,
                                   .notify_offset = 8};
    op->cause.status = status;
    g.seat.taken++;
    epd_ring_post(&g.seat, op);
}

static void note_progress(void)
{
    g.completed = g.header->completed;
    g.notified = g.control[1];
}

static void completion_before_count_and_notify(void **state)
{
    (void)state;
    setup_ring();
    uint8_t *slot = (uint8_t *)epd_ring_completion(g.seat.ring, DEPTH, 0);
    uint8_t *page = g.seat.ring + (size_t)(slot - g.seat.ring) / TRAP_PAGE * TRAP_PAGE;
    assert_true(page > (uint8_t *)(g.header + 1));
    g.completed = g.notified = 99;
    assert_int_equal(trap_set(page, PROT_READ, note_progress), 0);
    post(0, 0);
    assert_int_equal(trap_end(), 1);
    assert_int_equal(g.completed, 0);
    assert_int_equal(g.notified, 0);
    assert_int_equal(g.header->completed, 1);
    assert_int_equal(g.control[1], 1);
    end_ring();
}

static void completions_wrap(void **state)
{
    (void)state;
    setup_ring();
    for (uint64_t i = 0; i < 3 * DEPTH; i++) {
        post(i, i % 5 == 0 ? EPD_EROUTING : EPD_OK);
        const struct epd_completion *c = epd_ring_completion(g.seat.ring, DEPTH, i);
        assert_int_equal(c->seq, i + 1);
        assert_int_equal(c->epoch, i);
        assert_int_equal(c->generation, 3);
        assert_int_equal(c->status, i % 5 == 0 ? EPD_EROUTING : EPD_OK);
        assert_int_equal(g.header->completed, i + 1);
        assert_int_equal(g.seat.op[i % EPD_OP_WINDOW].state, EPD_OP_FREE);
    }
    end_ring();
}

/* Sleeps as a client does, but for 20 s; says in its result whether it was woken. */
static void *sleeper(void *arg)
{
    const struct timespec limit = {.tv_sec = 20};
    (void)arg;
    __atomic_store_n(&g.header->waiters, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&g.header->completed, __ATOMIC_SEQ_CST) == 0)
        if (syscall(SYS_futex, &g.header->completed, FUTEX_WAIT, 0, &limit, NULL, 0) != 0 &&
            __atomic_load_n(&g.header->completed, __ATOMIC_SEQ_CST) == 0)
            break;
    return NULL;
}

static void wakes_a_waiter(void **state)
{
    (void)state;
    struct timespec begin, end;
    pthread_t thread;
    setup_ring();
    assert_int_equal(pthread_create(&thread, NULL, sleeper, NULL), 0);
    while (__atomic_load_n(&g.header->waiters, __ATOMIC_SEQ_CST) == 0)
        usleep(100);
    usleep(50000); /* asleep by now */
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    post(0, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    assert_true(end.tv_sec - begin.tv_sec < 10);
    end_ring();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_before_count_and_notify),
        cmocka_unit_test(completions_wrap),
        cmocka_unit_test(wakes_a_waiter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
