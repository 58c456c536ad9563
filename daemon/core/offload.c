#include "daemon/core/offload.h"

#include <stdlib.h>

#include "daemon/base/util.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/must.h"

struct job {
    uv_work_t req;
    struct epd_core *core;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void on_work(uv_work_t *req)
{
    struct job *job = req->data;
    job->work(job->arg);
}

static void on_done(uv_work_t *req, int status)
{
    struct job *job = req->data;
    struct epd_core *core = job->core;
    (void)status; /* nothing is cancelled */
    job->done(job->arg);
    free(job);
    core->jobs--;
    epd_core_check_stopped(core);
}

void epd_offload(struct epd_core *core, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    struct job *job = epd_must_calloc(sizeof(*job));
    *job = (struct job){.core = core, .work = work, .done = done, .arg = arg};
    job->req.data = job;
    core->jobs++;
    epd_assert(uv_queue_work(core->loop, &job->req, on_work, on_done) == 0);
}

static void close_work(void *arg)
{
    epd_close_fd(arg);
}

void epd_offload_close(struct epd_core *core, int fd, uint64_t bytes)
{
    if (bytes < EPD_OFFLOAD_BYTES)
        epd_close_fd(&fd);
    else
        epd_offload(core, close_work, free, epd_must_copy(&fd, sizeof(fd)));
}
