/* Fork detection. A forked child must not use its parent's session. Control calls compare getpid();
 * data-path calls, which make no system call, compare a process-global count that a
 * pthread_atfork child handler advances. */
#ifndef EPD_CLIENT_FORK_H
#define EPD_CLIENT_FORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Internal to the library. */
extern uint32_t epdc_fork_counter;

/* Who made a handle: filled once, never changed. */
struct epdc_owner {
    pid_t pid;
    uint32_t forks;
};

/* Install the handler (once for the process) and fill *owner_out. */
void epdc_owner_init(struct epdc_owner *owner_out);
/* True in any process but the maker's (also after clone() or vfork(), which run no handlers). */
bool epdc_owner_forked(const struct epdc_owner *owner);

/* Data path: no system call. */
static inline bool epdc_owner_forked_fast(const struct epdc_owner *owner)
{
    return __atomic_load_n(&epdc_fork_counter, __ATOMIC_RELAXED) != owner->forks;
}

#endif
