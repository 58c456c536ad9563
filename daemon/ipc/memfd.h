/* Anonymous shared memory. */
#ifndef EPD_IPC_MEMFD_H
#define EPD_IPC_MEMFD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/* A zeroed memfd of `bytes`, close-on-exec, sealed against shrinking and growing; and against
 * further seals when `final` (leave it false to add F_SEAL_FUTURE_WRITE later). */
enum epd_status epd_memfd_create(const char *name, uint64_t bytes, bool final, int *fd_out,
                                 struct epd_error *err);
/* No new writable mapping from here on (existing ones stay), and no further seals. */
enum epd_status epd_memfd_seal_future_write(int fd, struct epd_error *err);
enum epd_status epd_memfd_map(int fd, uint64_t bytes, bool writable, void **base_out,
                              struct epd_error *err);
void epd_memfd_unmap(void *base, uint64_t bytes); /* NULL is fine */
/* Foreign memory may be used only if it cannot vanish under us: a memfd, sealed against shrinking,
 * growing and sealing, not sealed against writing, at least `bytes` (> 0) long, all pages allocated
 * (no SIGBUS for want of memory; holes are filled here, and one that the owner punches later reads
 * as zeros). EPD_EINVAL names what is missing. */
enum epd_status epd_memfd_check_import(int fd, uint64_t bytes, struct epd_error *err);

#endif
