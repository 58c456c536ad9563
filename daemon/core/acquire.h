/* An AcquireLease call on its way: checks, waiting, the ring area. Ends in epd_acquire_answer.
 * Thread rule: the loop's thread. */
#ifndef EPD_CORE_ACQUIRE_H
#define EPD_CORE_ACQUIRE_H

#include "daemon/core/lease.h"

struct epd_acquire;

/* Does the caller still want it? */
bool epd_acquire_alive(const struct epd_acquire *acquire);
/* Answers the caller and frees the call. */
void epd_acquire_answer(struct epd_acquire *acquire, const struct epd_lease_info *info,
                        const struct epd_error *err);

#endif
