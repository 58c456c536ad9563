/* systemd's notification protocol (sd_notify(3)): datagrams to $NOTIFY_SOCKET. Without that
 * variable everything here is a no-op. */
#ifndef EPD_BASE_NOTIFY_H
#define EPD_BASE_NOTIFY_H

#include <stdint.h>

/* Send "READY=1", "STATUS=...", "STOPPING=1", "WATCHDOG=1". Never fails the caller. */
__attribute__((format(printf, 1, 2))) void epd_notify(const char *fmt, ...);
/* Half of WATCHDOG_USEC in ms when the watchdog is on for this process, else 0. */
uint64_t epd_notify_watchdog_ms(void);

#endif
