#include "daemon/core/waiters.h"

#include <stdlib.h>

#include "daemon/core/must.h"

struct epd_waiter {
    void (*fn)(void *arg);
    void *arg;
    struct epd_waiter *next;
};

void epd_waiters_add(struct epd_waiters *waiters, void (*fn)(void *arg), void *arg)
{
    struct epd_waiter *w = epd_must_calloc(sizeof(*w));
    *w = (struct epd_waiter){.fn = fn, .arg = arg};
    struct epd_waiter **at = &waiters->first;
    while (*at != NULL)
        at = &(*at)->next;
    *at = w;
}

void epd_waiters_run(struct epd_waiters *waiters)
{
    struct epd_waiter *w = waiters->first;
    waiters->first = NULL;
    while (w != NULL) {
        struct epd_waiter *next = w->next;
        w->fn(w->arg);
        free(w);
        w = next;
    }
}
