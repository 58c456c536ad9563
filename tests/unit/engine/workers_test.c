/* The task queue: every slice once, batches in turn, revoke, and who may touch a batch when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/workers.h"

/* ---- one thread: the order is visible ---- */

struct trace {
    char text[64];
    size_t n;
};
struct lettered {
    struct trace *trace;
    char letter;
};

static void note(void *arg, uint32_t index)
{
    struct lettered *l = arg;
    l->trace->text[l->trace->n++] = (char)(l->letter + (int)index);
}

static struct epd_workers *workers_of(uint32_t threads)
{
    struct epd_workers *w = NULL;
    struct epd_error err = {0};
    if (epd_workers_create(threads, &w, &err) != EPD_OK)
        fail_msg("%s", err.message);
    return w;
}

static void batches_take_turns(void **state)
{
    (void)state;
    struct trace trace = {0};
    struct lettered a = {&trace, 'a'}, b = {&trace, 'A'}, c = {&trace, '0'};
    struct epd_batch batch[3] = {{.run = note, .arg = &a, .count = 4},
                                 {.run = note, .arg = &b, .count = 1},
                                 {.run = note, .arg = &c, .count = 3}};
    struct epd_workers *w = workers_of(1);
    assert_int_equal(epd_workers_done_fd(w), -1);
    assert_true(epd_workers_idle(w));
    assert_false(epd_workers_run_one(w));
    for (unsigned i = 0; i < 3; i++)
        epd_workers_submit(w, &batch[i]);
    assert_false(epd_workers_idle(w));
    while (epd_workers_run_one(w))
        ;
    assert_string_equal(trace.text, "aA0b1c2d");
    for (unsigned i = 0; i < 3; i++)
        assert_true(epd_batch_done(&batch[i]));
    assert_true(epd_workers_idle(w));
    assert_int_equal(epd_workers_tasks(w), 8);
    epd_workers_destroy(w);
}

static void empty_batch_is_done_at_once(void **state)
{
    (void)state;
    struct epd_batch batch = {.run = note, .count = 0};
    struct epd_workers *w = workers_of(2);
    epd_workers_submit(w, &batch);
    assert_true(epd_batch_done(&batch));
    assert_true(epd_workers_idle(w));
    epd_workers_destroy(w);
}

static void revoked_batch_runs_nothing_more(void **state)
{
    (void)state;
    struct trace trace = {0};
    struct lettered a = {&trace, 'a'}, b = {&trace, 'A'};
    struct epd_batch first = {.run = note, .arg = &a, .count = 5};
    struct epd_batch second = {.run = note, .arg = &b, .count = 2};
    struct epd_workers *w = workers_of(1);
    epd_workers_submit(w, &first);
    epd_workers_submit(w, &second);
    assert_true(epd_workers_run_one(w)); /* a */
    epd_batch_revoke(&first);
    assert_false(epd_batch_done(&first));
    while (epd_workers_run_one(w))
        ;
    assert_true(epd_batch_done(&first));
    assert_true(epd_batch_done(&second));
    assert_string_equal(trace.text, "aAB");
    assert_int_equal(epd_workers_tasks(w), 3); /* skipped slices are no tasks */
    /* The same memory serves again. */
    epd_workers_submit(w, &first);
    while (epd_workers_run_one(w))
        ;
    assert_string_equal(trace.text, "aABabcde");
    epd_workers_destroy(w);
}

static void thread_count_is_checked(void **state)
{
    (void)state;
    struct epd_workers *w = NULL;
    struct epd_error err;
    assert_int_equal(epd_workers_create(0, &w, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "workers is 0"));
    assert_int_equal(epd_workers_create(EPD_WORKERS_MAX + 1, &w, &err), EPD_EINVAL);
    assert_null(w);
    epd_workers_destroy(NULL);
    epd_workers_destroy(workers_of(EPD_WORKERS_MAX));
}

/* ---- threads ---- */

#define SLICES 64u
struct job {
    struct epd_batch batch;
    _Atomic uint32_t runs[SLICES];
};

static void count_run(void *arg, uint32_t index)
{
    struct job *job = arg;
    atomic_fetch_add_explicit(&job->runs[index], 1, memory_order_relaxed);
}

/* The owner frees a batch as soon as it is done: a worker that touched it later would be found by
 * the sanitizers. */
static void batch_is_its_owners_when_done(void **state)
{
    (void)state;
    struct epd_workers *w = workers_of(4);
    struct job *jobs[4] = {0};
    for (unsigned round = 0; round < 3000; round++) {
        struct job **slot = &jobs[round % 4];
        if (*slot != NULL) {
            while (!epd_batch_done(&(*slot)->batch))
                if (!epd_workers_run_one(w))
                    (void)sched_yield();
            for (uint32_t i = 0; i < (*slot)->batch.count; i++)
                assert_int_equal(atomic_load(&(*slot)->runs[i]), 1);
            free(*slot);
        }
        *slot = calloc(1, sizeof(**slot));
        (*slot)->batch =
            (struct epd_batch){.run = count_run, .arg = *slot, .count = 1 + round % SLICES};
        epd_workers_submit(w, &(*slot)->batch);
    }
    for (unsigned i = 0; i < 4; i++) {
        while (!epd_batch_done(&jobs[i]->batch))
            (void)sched_yield(); /* the threads get on without us */
        free(jobs[i]);
    }
    epd_workers_destroy(w);
}

static void every_slice_is_counted(void **state)
{
    (void)state;
    struct epd_workers *w = workers_of(3);
    static struct job job;
    for (unsigned round = 0; round < 50; round++) {
        job.batch = (struct epd_batch){.run = count_run, .arg = &job, .count = SLICES};
        epd_workers_submit(w, &job.batch);
        while (!epd_batch_done(&job.batch))
            (void)epd_workers_run_one(w);
    }
    for (unsigned i = 0; i < SLICES; i++)
        assert_int_equal(atomic_load(&job.runs[i]), 50);
    while (!epd_workers_idle(w)) /* the last thread leaves a moment after the batch is done */
        (void)sched_yield();
    assert_int_equal(epd_workers_tasks(w), 50 * SLICES);
    epd_workers_destroy(w);
}

struct gate {
    struct epd_batch batch;
    _Atomic uint32_t running, open;
};

static void wait_at_gate(void *arg, uint32_t index)
{
    struct gate *gate = arg;
    (void)index;
    atomic_fetch_add(&gate->running, 1);
    while (atomic_load(&gate->open) == 0)
        (void)sched_yield();
}

/* A slice that runs is waited for, the others are skipped; and the end rings the eventfd. */
static void revoke_waits_for_running_slices(void **state)
{
    (void)state;
    struct epd_workers *w = workers_of(2);
    struct gate gate = {.batch = {.run = wait_at_gate, .arg = &gate, .count = 1000}};
    struct pollfd done = {.fd = epd_workers_done_fd(w), .events = POLLIN};
    assert_true(done.fd >= 0);
    epd_workers_submit(w, &gate.batch);
    while (atomic_load(&gate.running) == 0)
        (void)sched_yield();
    epd_batch_revoke(&gate.batch);
    while (epd_workers_run_one(w)) /* takes what is left, and skips it */
        ;
    assert_false(epd_batch_done(&gate.batch));
    assert_int_equal(poll(&done, 1, 0), 0);
    atomic_store(&gate.open, 1);
    assert_int_equal(poll(&done, 1, 10000), 1);
    assert_true(epd_batch_done(&gate.batch));
    assert_int_equal(atomic_load(&gate.running), 1);
    epd_workers_destroy(w);
}

/* A scheduler that sleeps until the eventfd rings sees the end of every batch. */
static void end_of_a_batch_wakes_the_scheduler(void **state)
{
    (void)state;
    struct epd_workers *w = workers_of(2);
    static struct job job;
    for (unsigned round = 0; round < 500; round++) {
        eventfd_t ends;
        (void)eventfd_read(epd_workers_done_fd(w), &ends); /* of earlier rounds, if any */
        job.batch = (struct epd_batch){.run = count_run, .arg = &job, .count = 3};
        epd_workers_submit(w, &job.batch);
        (void)epd_workers_run_one(w);
        while (!epd_batch_done(&job.batch)) {
            struct pollfd done = {.fd = epd_workers_done_fd(w), .events = POLLIN};
            if (epd_workers_run_one(w) || epd_batch_done(&job.batch))
                continue;
            assert_int_equal(poll(&done, 1, 10000), 1);
        }
    }
    epd_workers_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_take_turns),
        cmocka_unit_test(empty_batch_is_done_at_once),
        cmocka_unit_test(revoked_batch_runs_nothing_more),
        cmocka_unit_test(thread_count_is_checked),
        cmocka_unit_test(batch_is_its_owners_when_done),
        cmocka_unit_test(every_slice_is_counted),
        cmocka_unit_test(revoke_waits_for_running_slices),
        cmocka_unit_test(end_of_a_batch_wakes_the_scheduler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
