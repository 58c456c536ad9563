/* A unix socket that is exactly ours: guarded by a lock file, with exact mode and group whatever
 * the umask, replacing only a stale socket, never a live one and never another kind of file. */
#ifndef EPD_IPC_LISTENER_H
#define EPD_IPC_LISTENER_H

#include <sys/types.h>

#include "daemon/base/error.h"

/* Take "<socket>.lock" (flock, exclusive; 0600; not through a symbolic link). The folder is made
 * (0755) when only its last part is missing. The fd (owned by the caller) keeps the lock; it may be
 * inherited, and the lock lasts until every copy is closed. Waits up to wait_ms while the recorded
 * holder is dead but its children still hold the lock. EPD_EBUSY names the holder's pid. */
enum epd_status epd_lock_take(const char *socket_path, unsigned wait_ms, int *fd_out,
                              struct epd_error *err);

struct epd_listener {
    int fd; /* owned, non-blocking, close-on-exec; -1: closed */
    char path[108];
    dev_t dev;
    ino_t ino;
};

/* Bind and listen. type: SOCK_STREAM or SOCK_SEQPACKET; group NULL or "": unchanged. The caller
 * holds the lock of the socket, and is the only thread that makes files now (umask). Errors:
 * EPD_EEXIST (a file that is no socket stands there), EPD_ENOENT (no such group), ... */
enum epd_status epd_listener_open(struct epd_listener *listener, const char *path, int type,
                                  mode_t mode, const char *group, struct epd_error *err);
/* Close, and unlink the path if it still is our socket. Idempotent. */
void epd_listener_close(struct epd_listener *listener);

#endif
