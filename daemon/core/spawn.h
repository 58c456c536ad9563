/* Starting and reaping an epd-engine process. */
#ifndef EPD_CORE_SPAWN_H
#define EPD_CORE_SPAWN_H

#include <sys/types.h>

#include "daemon/base/error.h"

struct epd_spawned {
    pid_t pid;
    int pidfd; /* owned by the caller, close-on-exec */
    int sock;  /* owned by the caller: our end, non-blocking, close-on-exec */
};

/* Start `path` with its end of a socketpair at EPD_ENGINE_FD and a copy of lock_fd at
 * EPD_ENGINE_LOCK_FD, default signals, a process group of its own, and no other descriptor above 2.
 * Safe while other threads run (vfork semantics). Errors: EPD_ESYS naming the path, EPD_ELIMIT. */
enum epd_status epd_spawn_engine(const char *path, unsigned device, int lock_fd,
                                 struct epd_spawned *out, struct epd_error *err);

/* Reap a process whose pidfd is readable; *text_out describes its end ("exit 1", "signal 9"). */
void epd_spawn_reap(pid_t pid, char *text_out, size_t cap);

#endif
