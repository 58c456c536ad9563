#include "daemon/engine/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/engine/workers.h"

/* Batches wait in a ring list; a claim takes one slice of the batch at the head and moves the head
 * on, so that batches of several ops interleave. The list is guarded by a mutex held for a few
 * instructions; slices run outside of it. A batch leaves the list when its last slice is claimed;
 * after its last slice has *ended* (left = 0) no worker touches it again. */

struct epd_workers {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct epd_batch *head, *tail; /* guarded by mutex */
    uint32_t sleeping;             /* guarded by mutex */
    bool stop;                     /* guarded by mutex */
    _Atomic uint32_t active;       /* batches submitted and not done */
    _Atomic uint64_t tasks;
    int done_fd; /* eventfd: a batch ended on another thread; -1 with one thread */
    uint32_t n_threads;
    pthread_t threads[EPD_WORKERS_MAX];
};

static struct epd_batch *pop(struct epd_workers *w)
{
    struct epd_batch *batch = w->head;
    w->head = batch->link;
    if (w->head == NULL)
        w->tail = NULL;
    batch->link = NULL;
    return batch;
}

static void push(struct epd_workers *w, struct epd_batch *batch)
{
    batch->link = NULL;
    if (w->tail != NULL)
        w->tail->link = batch;
    else
        w->head = batch;
    w->tail = batch;
}

struct slice {
    struct epd_batch *batch;
    uint32_t index;
    uint32_t skipped; /* > 0: the batch is revoked; these slices end without running */
};

/* With the mutex held. False: nothing to do. */
static bool claim(struct epd_workers *w, struct slice *out)
{
    if (w->head == NULL)
        return false;
    struct epd_batch *batch = pop(w);
    const uint32_t index = atomic_load_explicit(&batch->next, memory_order_relaxed);
    *out = (struct slice){.batch = batch, .index = index};
    if (atomic_load_explicit(&batch->stop, memory_order_relaxed)) {
        out->skipped = batch->count - index;
        return true;
    }
    atomic_store_explicit(&batch->next, index + 1, memory_order_relaxed);
    if (index + 1 < batch->count)
        push(w, batch);
    return true;
}

/* Run a claimed slice. True when it was the batch's last. */
static bool finish(struct epd_workers *w, const struct slice *slice)
{
    struct epd_batch *batch = slice->batch;
    const uint32_t ended = slice->skipped > 0 ? slice->skipped : 1;
    if (slice->skipped == 0) {
        batch->run(batch->arg, slice->index);
        atomic_fetch_add_explicit(&w->tasks, 1, memory_order_relaxed);
    }
    const bool last = atomic_fetch_sub_explicit(&batch->left, ended, memory_order_acq_rel) == ended;
    if (last) /* the batch is its owner's again */
        atomic_fetch_sub_explicit(&w->active, 1, memory_order_relaxed);
    return last;
}

static void *worker_main(void *arg)
{
    struct epd_workers *w = arg;
    struct slice slice;
    (void)pthread_mutex_lock(&w->mutex);
    while (!w->stop) {
        if (!claim(w, &slice)) {
            w->sleeping++;
            (void)pthread_cond_wait(&w->wake, &w->mutex);
            w->sleeping--;
            continue;
        }
        (void)pthread_mutex_unlock(&w->mutex);
        if (finish(w, &slice))
            (void)eventfd_write(w->done_fd, 1); /* saturation still wakes the scheduler */
        (void)pthread_mutex_lock(&w->mutex);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return NULL;
}

enum epd_status epd_workers_create(uint32_t threads, struct epd_workers **out,
                                   struct epd_error *err)
{
    if (threads < 1 || threads > EPD_WORKERS_MAX)
        return epd_fail(err, EPD_EINVAL, "workers is %u, must be 1..%u", threads, EPD_WORKERS_MAX);
    struct epd_workers *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for the workers");
    w->done_fd = -1;
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_cond_init(&w->wake, NULL);
    if (threads > 1 && (w->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
        epd_workers_destroy(w);
        return epd_fail_errno(err, "eventfd of the workers");
    }
    for (uint32_t i = 1; i < threads; i++) {
        if (pthread_create(&w->threads[w->n_threads], NULL, worker_main, w) != 0) {
            epd_workers_destroy(w);
            return epd_fail(err, EPD_ELIMIT, "cannot start worker thread %u of %u", i, threads);
        }
        w->n_threads++;
    }
    *out = w;
    return EPD_OK;
}

void epd_workers_destroy(struct epd_workers *w)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->mutex);
    w->stop = true;
    (void)pthread_cond_broadcast(&w->wake);
    (void)pthread_mutex_unlock(&w->mutex);
    for (uint32_t i = 0; i < w->n_threads; i++)
        (void)pthread_join(w->threads[i], NULL);
    epd_close_fd(&w->done_fd);
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->mutex);
    free(w);
}

void epd_workers_submit(struct epd_workers *w, struct epd_batch *batch)
{
    atomic_store_explicit(&batch->next, 0, memory_order_relaxed);
    atomic_store_explicit(&batch->stop, false, memory_order_relaxed);
    atomic_store_explicit(&batch->left, batch->count, memory_order_relaxed);
    if (batch->count == 0)
        return;
    atomic_fetch_add_explicit(&w->active, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&w->mutex);
    push(w, batch);
    /* No more threads than slices: the others would fight for the mutex and go back to sleep. */
    for (uint32_t i = 0; i < batch->count && i < w->sleeping; i++)
        (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->mutex);
}

bool epd_workers_run_one(struct epd_workers *w)
{
    struct slice slice;
    if (atomic_load_explicit(&w->active, memory_order_relaxed) == 0)
        return false;
    (void)pthread_mutex_lock(&w->mutex);
    const bool got = claim(w, &slice);
    (void)pthread_mutex_unlock(&w->mutex);
    if (got)
        (void)finish(w, &slice);
    return got;
}

bool epd_workers_idle(const struct epd_workers *w)
{
    return atomic_load_explicit(&w->active, memory_order_relaxed) == 0;
}

void epd_batch_revoke(struct epd_batch *batch)
{
    atomic_store_explicit(&batch->stop, true, memory_order_relaxed);
}

uint64_t epd_workers_tasks(const struct epd_workers *w)
{
    return atomic_load_explicit(&w->tasks, memory_order_relaxed);
}

int epd_workers_done_fd(const struct epd_workers *w)
{
    return w->done_fd;
}
