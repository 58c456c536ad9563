#include "daemon/ipc/peer.h"

#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void socket_tells_who(void **state)
{
    (void)state;
    struct epd_peer peer;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(epd_peer_of_socket(pair[0], &peer, NULL), EPD_OK);
    assert_int_equal(peer.uid, getuid());
    assert_int_equal(peer.gid, getgid());
    assert_int_equal(peer.pid, getpid());
    epd_close_fd(&pair[0]);
    epd_close_fd(&pair[1]);
    struct epd_error err;
    assert_int_equal(epd_peer_of_socket(-1, &peer, &err), EPD_ESYS);
}

static void pidfd_becomes_readable_at_death(void **state)
{
    (void)state;
    struct epd_error err;
    int fd = -1, status;
    pid_t pid = fork();
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    assert_int_equal(epd_pidfd_open(pid, &fd, &err), EPD_OK);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    epd_close_fd(&fd);
    assert_int_equal(epd_pidfd_open(pid, &fd, &err), EPD_ESYS); /* reaped */
}

static void groups(void **state)
{
    (void)state;
    const struct epd_peer me = {.uid = getuid(), .gid = getgid(), .pid = getpid()};
    const struct epd_peer stranger = {.uid = 54321, .gid = 54321, .pid = 1};
    const struct group *gr = getgrgid(getgid());
    if (gr == NULL) {
        print_message("skipped: this process's group has no name\n");
        skip();
    }
    char name[128];
    (void)snprintf(name, sizeof(name), "%s", gr->gr_name);
    assert_true(epd_peer_in_group(&me, name));
    assert_false(epd_peer_in_group(&stranger, name));
    assert_false(epd_peer_in_group(&me, "no-such-group-here"));
    assert_false(epd_peer_in_group(&me, ""));
    assert_false(epd_peer_in_group(&me, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(socket_tells_who),
        cmocka_unit_test(pidfd_becomes_readable_at_death),
        cmocka_unit_test(groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
