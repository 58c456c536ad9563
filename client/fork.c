#include "client/fork.h"

#include <pthread.h>
#include <unistd.h>

uint32_t epdc_fork_counter;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_child(void)
{
    __atomic_fetch_add(&epdc_fork_counter, 1u, __ATOMIC_RELAXED);
}

static void install(void)
{
    /* Fails only without memory; control calls still notice by their pid. */
    (void)pthread_atfork(NULL, NULL, on_child);
}

void epdc_owner_init(struct epdc_owner *owner_out)
{
    (void)pthread_once(&once, install);
    owner_out->pid = getpid();
    owner_out->forks = __atomic_load_n(&epdc_fork_counter, __ATOMIC_RELAXED);
}

bool epdc_owner_forked(const struct epdc_owner *owner)
{
    return epdc_owner_forked_fast(owner) || getpid() != owner->pid;
}
