/* Everything that may wake a sleeping engine, in one epoll set: the control socket, the peers'
 * doorbell, the workers' eventfd, and one eventfd for each leased seat (its session's). A client can
 * write its own doorbell or drain it; it harms only itself. */
#ifndef EPD_ENGINE_DOORBELLS_H
#define EPD_ENGINE_DOORBELLS_H

#include <stdint.h>

#include "daemon/base/error.h"

struct epd_doorbells;

enum epd_status epd_doorbells_create(struct epd_doorbells **out, struct epd_error *err);
void epd_doorbells_destroy(struct epd_doorbells *doorbells);
/* Watch a descriptor that is not a seat's; borrowed. eventfd: drained when it wakes us. */
enum epd_status epd_doorbells_watch(struct epd_doorbells *doorbells, int fd, int eventfd,
                                    struct epd_error *err);
/* The doorbell of a seat; *fd is taken over (-1 afterwards) on success. Replaces an older one. */
enum epd_status epd_doorbells_add(struct epd_doorbells *doorbells, uint64_t group, uint32_t rank,
                                  int *fd, struct epd_error *err);
/* Of one seat, or (rank -1) of all seats of the group. */
void epd_doorbells_remove(struct epd_doorbells *doorbells, uint64_t group, int32_t rank);
/* Sleep until one rings, at most timeout_ns (UINT64_MAX: for ever), and drain what rang. */
void epd_doorbells_sleep(struct epd_doorbells *doorbells, uint64_t timeout_ns);

#endif
