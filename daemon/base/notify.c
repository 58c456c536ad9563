#include "daemon/base/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/util.h"

void epd_notify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(addr.sun_path))
        return;
    memcpy(addr.sun_path, path, strlen(path));
    if (path[0] == '@') /* abstract */
        addr.sun_path[0] = 0;
    char text[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (n < 0)
        return;
    const size_t len = (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1;
    EPD_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    /* The manager's absence is its own business. */
    (void)sendto(fd, text, len, MSG_NOSIGNAL, (struct sockaddr *)&addr, size);
}

uint64_t epd_notify_watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (usec == NULL || (pid != NULL && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtoull(usec, NULL, 10) / 2000u;
}
