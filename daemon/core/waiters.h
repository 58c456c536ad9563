/* Continuations that wait for a condition: run all, and let each look for itself; one that must go
 * on waiting adds itself again. Thread rule: the loop's thread. */
#ifndef EPD_CORE_WAITERS_H
#define EPD_CORE_WAITERS_H

struct epd_waiter;
struct epd_waiters {
    struct epd_waiter *first; /* owned */
};

void epd_waiters_add(struct epd_waiters *waiters, void (*fn)(void *arg), void *arg);
/* Runs those that were there at the call, oldest first. */
void epd_waiters_run(struct epd_waiters *waiters);

#endif
