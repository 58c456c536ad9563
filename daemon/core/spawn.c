#include "daemon/core/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/ipc/peer.h"
#include "proto/engine.h"

extern char **environ;

/* Both descriptors are far above the targets, so that neither dup2 hits the other's source. */
static int run(const char *path, unsigned device, int sock, int lock, pid_t *pid_out)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t all, none;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return rc;
    rc = posix_spawnattr_init(&attr);
    if (rc != 0)
        goto out_actions;
    char name[32];
    (void)snprintf(name, sizeof(name), "%u", device);
    char arg0[] = "epd-engine";
    char *argv[] = {arg0, name, NULL};
    rc = posix_spawn_file_actions_adddup2(&actions, sock, EPD_ENGINE_FD);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&actions, lock, EPD_ENGINE_LOCK_FD);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&actions, EPD_ENGINE_LOCK_FD + 1);
    if (rc == 0)
        rc = posix_spawnattr_setsigdefault(&attr, &all);
    if (rc == 0)
        rc = posix_spawnattr_setsigmask(&attr, &none);
    if (rc == 0)
        rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
                                                 POSIX_SPAWN_SETPGROUP);
    if (rc == 0)
        rc = posix_spawn(pid_out, path, &actions, &attr, argv, environ);
    (void)posix_spawnattr_destroy(&attr); /* cannot fail in glibc */
out_actions:
    (void)posix_spawn_file_actions_destroy(&actions); /* cannot fail in glibc */
    return rc;
}

enum epd_status epd_spawn_engine(const char *path, unsigned device, int lock_fd,
                                 struct epd_spawned *out, struct epd_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return epd_fail_errno(err, "socketpair for engine %u", device);
    EPD_AUTO_CLOSE int ours = pair[0];
    EPD_AUTO_CLOSE int theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, 16);
    EPD_AUTO_CLOSE int lock = fcntl(lock_fd, F_DUPFD_CLOEXEC, 16);
    epd_close_fd(&pair[1]);
    if (theirs < 0 || lock < 0)
        return epd_fail_errno(err, "descriptors for engine %u", device);
    if (fcntl(ours, F_SETFL, O_NONBLOCK) != 0)
        return epd_fail_errno(err, "socket of engine %u", device);
    pid_t pid = 0;
    errno = run(path, device, theirs, lock, &pid);
    if (errno != 0)
        return epd_fail_errno(err, "start %s", path);
    epd_assert(pid > 0);
    int pidfd = -1;
    enum epd_status status = epd_pidfd_open(pid, &pidfd, err);
    if (status != EPD_OK) {
        (void)kill(pid, SIGKILL); /* our child, not reaped: the pid is still its own */
        (void)waitpid(pid, NULL, 0);
        return status;
    }
    *out = (struct epd_spawned){.pid = pid, .pidfd = pidfd, .sock = epd_steal_fd(&ours)};
    return EPD_OK;
}

void epd_spawn_reap(pid_t pid, char *text_out, size_t cap)
{
    int status = 0;
    pid_t got;
    do
        got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got != pid)
        (void)snprintf(text_out, cap, "lost");
    else if (WIFSIGNALED(status))
        (void)snprintf(text_out, cap, "signal %d", WTERMSIG(status));
    else
        (void)snprintf(text_out, cap, "exit %d", WEXITSTATUS(status));
}
