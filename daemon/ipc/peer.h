/* Who is at the other end of a unix socket. */
#ifndef EPD_IPC_PEER_H
#define EPD_IPC_PEER_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/base/error.h"

/* As of connect(); pid in this process's pid namespace (0 when not visible there). */
struct epd_peer {
    uid_t uid;
    gid_t gid;
    pid_t pid;
};

enum epd_status epd_peer_of_socket(int fd, struct epd_peer *out, struct epd_error *err);
/* A pidfd of pid (owned by the caller, close-on-exec): readable when the process has exited. */
enum epd_status epd_pidfd_open(pid_t pid, int *fd_out, struct epd_error *err);
/* Is the user in the named group (its own gid, or the group database)? Unknown group: false. */
bool epd_peer_in_group(const struct epd_peer *peer, const char *group);

#endif
