/* Work that may take long (filling or freeing gigabytes of pages) on libuv's thread pool, so that
 * the loop goes on. Thread rule: called on the loop's thread; `work` runs on another one and may
 * touch nothing but `arg`; `done` runs on the loop. A core does not stop before all is done. */
#ifndef EPD_CORE_OFFLOAD_H
#define EPD_CORE_OFFLOAD_H

#include "daemon/core/core.h"

#define EPD_OFFLOAD_BYTES (64u << 20) /* what is smaller is done at once */

void epd_offload(struct epd_core *core, void (*work)(void *arg), void (*done)(void *arg),
                 void *arg);
/* Close a descriptor that may be the last one of so much memory. */
void epd_offload_close(struct epd_core *core, int fd, uint64_t bytes);

#endif
