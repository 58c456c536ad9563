#include "daemon/base/notify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A manager's socket at path ("@name": abstract); NOTIFY_SOCKET is set to it. */
static int manager(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    strcpy(addr.sun_path, path);
    if (path[0] == '@')
        addr.sun_path[0] = 0;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))),
                     0);
    (void)setenv("NOTIFY_SOCKET", path, 1);
    return fd;
}

static void messages_arrive(void **state)
{
    (void)state;
    char path[2][64], text[600];
    (void)snprintf(path[0], sizeof(path[0]), "/tmp/epd-notify-test.%d", (int)getpid());
    (void)snprintf(path[1], sizeof(path[1]), "@epd-notify-test.%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        int fd = manager(path[i]);
        epd_notify("READY=1\nSTATUS=%s %d", "devices", 2);
        ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
        assert_true(n > 0);
        text[n] = 0;
        assert_string_equal(text, "READY=1\nSTATUS=devices 2");
        (void)close(fd);
        epd_notify("STOPPING=1"); /* the manager is gone: no harm */
    }
    (void)unlink(path[0]);
    (void)setenv("NOTIFY_SOCKET", "not-a-path", 1);
    epd_notify("READY=1");
    (void)unsetenv("NOTIFY_SOCKET");
    epd_notify("READY=1");
}

static void watchdog_is_for_this_process_only(void **state)
{
    (void)state;
    char pid[16];
    assert_int_equal(epd_notify_watchdog_ms(), 0);
    (void)setenv("WATCHDOG_USEC", "10000000", 1);
    assert_int_equal(epd_notify_watchdog_ms(), 5000);
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    (void)setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(epd_notify_watchdog_ms(), 5000);
    (void)setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(epd_notify_watchdog_ms(), 0);
    (void)unsetenv("WATCHDOG_PID");
    (void)setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(epd_notify_watchdog_ms(), 0);
    (void)unsetenv("WATCHDOG_USEC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(watchdog_is_for_this_process_only),
    };
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
