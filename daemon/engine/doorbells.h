/* Everything that may wake a sleeping engine, in one epoll set: the control socket, the peers'
 * doorbell, the workers' eventfd, and one eventfd for each leased seat (its session's). Eventfds
 * are watched for edges (writes) and never read: a client shares the file description of its
 * doorbell and could make a read block. It can write it or drain it; it harms only itself. Thread
 * rule: the scheduler. */
#ifndef EPD_ENGINE_DOORBELLS_H
#define EPD_ENGINE_DOORBELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

struct epd_doorbells;

enum epd_status epd_doorbells_create(struct epd_doorbells **out, struct epd_error *err);
void epd_doorbells_destroy(struct epd_doorbells *doorbells);
/* Watch a descriptor that is not a seat's; borrowed. edge: each write wakes once (eventfds), else
 * it wakes as long as it is readable. */
enum epd_status epd_doorbells_watch(struct epd_doorbells *doorbells, int fd, bool edge,
                                    struct epd_error *err);
/* The doorbell of a seat; *fd is taken over (-1 afterwards) on success. Replaces an older one. */
enum epd_status epd_doorbells_add(struct epd_doorbells *doorbells, uint64_t group, uint32_t rank,
                                  int *fd, struct epd_error *err);
/* Of one seat, or (rank -1) of all seats of the group. */
void epd_doorbells_remove(struct epd_doorbells *doorbells, uint64_t group, int32_t rank);
/* Sleep until one has rung since the last sleep, at most timeout_ns (UINT64_MAX: for ever). */
void epd_doorbells_sleep(struct epd_doorbells *doorbells, uint64_t timeout_ns);

#endif
