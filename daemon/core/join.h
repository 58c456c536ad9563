/* Several requests to engines, one answer: done is called when all replies are in, with the first
 * error. Thread rule: the loop's thread. */
#ifndef EPD_CORE_JOIN_H
#define EPD_CORE_JOIN_H

#include <stdbool.h>

#include "daemon/core/core.h"
#include "daemon/core/device.h"

struct epd_join;

/* ignore_lost: an engine that dies or is down counts as success (a replay will tell it). */
struct epd_join *epd_join_create(bool ignore_lost, epd_done_fn done, void *arg);
/* h.bytes is set by the caller. */
void epd_join_request(struct epd_join *join, struct epd_device *device, struct epd_msg_header *msg,
                      int fd);
/* No more requests; done may run inside this call, and the join is gone afterwards. */
void epd_join_seal(struct epd_join *join);

#endif
