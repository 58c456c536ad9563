#include "daemon/ipc/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/util.h"

static pid_t read_holder(int fd)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    return n > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
}

static void write_holder(int fd)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    /* The number only serves messages; the lock itself is the flock. */
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, text, (size_t)n, 0);
}

/* mkdir of the path's folder; its parent must exist. Failures show in the open that follows. */
static void make_folder(const char *path)
{
    char folder[160];
    (void)snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder)
        return;
    *slash = 0;
    const mode_t old = umask(0022);
    (void)mkdir(folder, 0755);
    (void)umask(old);
}

/* EPD_OK when nothing stands at path, or a socket: a stale one, since we hold the lock. */
static enum epd_status check_stale(const char *path, struct epd_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? EPD_OK : epd_fail_errno(err, "%s", path);
    if (!S_ISSOCK(st.st_mode))
        return epd_fail(err, EPD_EEXIST,
                        "%s exists and is no socket: remove it or choose another --socket", path);
    return EPD_OK;
}

enum epd_status epd_lock_take(const char *socket_path, unsigned wait_ms, int *fd_out,
                              struct epd_error *err)
{
    char path[160];
    const int n = snprintf(path, sizeof(path), "%s.lock", socket_path);
    if (n < 0 || (size_t)n >= sizeof(path))
        return epd_fail(err, EPD_EINVAL, "the socket path is too long: %.100s...", socket_path);
    /* First: beside somebody else's file, "<file>.lock" may mean something to others. */
    const enum epd_status status = check_stale(socket_path, err);
    if (status != EPD_OK)
        return status;
    make_folder(path);
    EPD_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return epd_fail_errno(err, "lock file %s", path);
    const uint64_t deadline = epd_now_ns() + wait_ms * 1000000ull;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return epd_fail_errno(err, "flock of %s", path);
        const pid_t holder = read_holder(fd);
        /* No number yet: the holder is about to write it. */
        const bool alive = holder > 0 && (kill(holder, 0) == 0 || errno == EPERM);
        if (alive || epd_now_ns() >= deadline)
            return epd_fail(err, EPD_EBUSY,
                            "%s is in use by pid %d%s: stop it or choose another --socket",
                            socket_path, (int)holder, alive ? "" : " or its children");
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    write_holder(fd);
    *fd_out = epd_steal_fd(&fd);
    return EPD_OK;
}

static enum epd_status set_owner(const char *path, mode_t mode, const char *group,
                                 struct epd_error *err)
{
    if (chmod(path, mode) != 0)
        return epd_fail_errno(err, "chmod of %s", path);
    if (group == NULL || group[0] == 0)
        return EPD_OK;
    const struct group *gr = getgrnam(group);
    if (gr == NULL)
        return epd_fail(err, EPD_ENOENT,
                        "socket_group %s does not exist: create it or clear the "
                        "setting",
                        group);
    if (chown(path, (uid_t)-1, gr->gr_gid) != 0)
        return epd_fail_errno(err, "chown of %s to group %s", path, group);
    return EPD_OK;
}

/* Bound under a private name first, so that the path never shows a socket with the umask's mode. */
static enum epd_status bind_at(struct epd_listener *l, const char *path, mode_t mode,
                               const char *group, struct epd_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const int n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s~", path);
    if (n < 0 || (size_t)n >= sizeof(addr.sun_path))
        return epd_fail(err, EPD_EINVAL, "socket path %s is longer than %zu bytes", path,
                        sizeof(addr.sun_path) - 2);
    enum epd_status status = check_stale(addr.sun_path, err);
    if (status != EPD_OK)
        return status;
    (void)unlink(addr.sun_path);
    const mode_t old = umask(0177);
    const int rc = bind(l->fd, (struct sockaddr *)&addr, sizeof(addr));
    (void)umask(old);
    if (rc != 0)
        return epd_fail_errno(err, "bind of %s", path);
    status = set_owner(addr.sun_path, mode, group, err);
    struct stat st;
    if (status == EPD_OK && listen(l->fd, 4096) != 0)
        status = epd_fail_errno(err, "listen on %s", path);
    if (status == EPD_OK && stat(addr.sun_path, &st) != 0)
        status = epd_fail_errno(err, "stat of %s", path);
    if (status == EPD_OK && rename(addr.sun_path, path) != 0)
        status = epd_fail_errno(err, "rename to %s", path);
    if (status != EPD_OK) {
        (void)unlink(addr.sun_path);
        return status;
    }
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    (void)snprintf(l->path, sizeof(l->path), "%s", path);
    return EPD_OK;
}

enum epd_status epd_listener_open(struct epd_listener *listener, const char *path, int type,
                                  mode_t mode, const char *group, struct epd_error *err)
{
    *listener = (struct epd_listener){.fd = -1};
    enum epd_status status = check_stale(path, err);
    if (status != EPD_OK)
        return status;
    listener->fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0)
        return epd_fail_errno(err, "socket");
    status = bind_at(listener, path, mode, group, err);
    if (status != EPD_OK)
        epd_close_fd(&listener->fd);
    return status;
}

void epd_listener_close(struct epd_listener *listener)
{
    struct stat st;
    if (listener->fd < 0)
        return;
    epd_close_fd(&listener->fd);
    if (lstat(listener->path, &st) == 0 && st.st_dev == listener->dev && st.st_ino == listener->ino)
        (void)unlink(listener->path);
}
