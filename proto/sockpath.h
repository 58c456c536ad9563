/* Where the control socket is; one rule for epd, libepd and epdctl (README.md, "Sockets").
 * Order: the flag, EPD_SOCKET, the configuration, as root /run/epd/epd.sock, else
 * $XDG_RUNTIME_DIR/epd/epd.sock. */
#ifndef EPD_PROTO_SOCKPATH_H
#define EPD_PROTO_SOCKPATH_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPD_SOCKPATH_MAX 108u /* sun_path */
#define EPD_SOCKPATH_FD_SUFFIX ".fd"
#define EPD_SOCKPATH_LOCK_SUFFIX ".lock"

/* Write the path into buf[len]. flag and config may be NULL or "". 0 on success; -1: *problem_out
 * is a static text that names the remedy. The longest companion (".lock") fits too. */
static inline int epd_socket_path(const char *flag, const char *config, char *buf, size_t len,
                                  const char **problem_out)
{
    const char *env = getenv("EPD_SOCKET");
    const char *run = getenv("XDG_RUNTIME_DIR");
    int n;
    if (flag != NULL && flag[0] != 0)
        n = snprintf(buf, len, "%s", flag);
    else if (env != NULL && env[0] != 0)
        n = snprintf(buf, len, "%s", env);
    else if (config != NULL && config[0] != 0)
        n = snprintf(buf, len, "%s", config);
    else if (geteuid() == 0)
        n = snprintf(buf, len, "/run/epd/epd.sock");
    else if (run != NULL && run[0] != 0)
        n = snprintf(buf, len, "%s/epd/epd.sock", run);
    else {
        *problem_out = "no socket path: XDG_RUNTIME_DIR is not set; set it, or give --socket or "
                       "EPD_SOCKET";
        return -1;
    }
    if (n < 0 || (size_t)n >= len ||
        (size_t)n + sizeof(EPD_SOCKPATH_LOCK_SUFFIX) > EPD_SOCKPATH_MAX) {
        *problem_out = "the socket path is too long: at most 102 bytes, so that its companions fit";
        return -1;
    }
    return 0;
}

#endif
