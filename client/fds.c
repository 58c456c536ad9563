#include "client/fds.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/epd.h"
#include "client/fail.h"

#define MAX_FDS 4 /* room for fds that should not be there, so that they are closed, not lost */

struct answer {
    struct epd_fd_reply reply;
    int fd[MAX_FDS];
    unsigned fds;
};

static void close_fds(const struct answer *a)
{
    for (unsigned i = 0; i < a->fds; i++)
        (void)close(a->fd[i]); /* nothing to do about a failure */
}

static enum epd_status fail_connect(const char *path, struct epd_error *err)
{
    switch (errno) {
    case ENOENT:
        return epdc_fail(err, EPD_EUNREACHABLE, "fd socket %s does not exist: is epd running?",
                         path);
    case ECONNREFUSED:
        return epdc_fail(err, EPD_EUNREACHABLE,
                         "fd socket %s: nobody listens there; start epd again", path);
    case EACCES:
        return epdc_fail(err, EPD_EPERM, "fd socket %s: permission denied; join the socket's group",
                         path);
    case EAGAIN:
        return epdc_fail(err, EPD_ETIMEDOUT, "fd socket %s: connect timed out", path);
    default:
        return epdc_fail_errno(err, "fd socket %s: connect", path);
    }
}

static enum epd_status open_socket(const struct epdc_redeem *r, int *fd_out, struct epd_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = strlen(r->path);
    if (len >= sizeof(addr.sun_path))
        return epdc_fail(err, EPD_EINVAL, "fd socket path is %zu bytes, at most %zu fit: %s", len,
                         sizeof(addr.sun_path) - 1, r->path);
    memcpy(addr.sun_path, r->path, len + 1);

    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return epdc_fail_errno(err, "fd socket: socket");

    enum epd_status status;
    struct timeval tv = {.tv_sec = (time_t)(r->timeout_ns / 1000000000),
                         .tv_usec = (suseconds_t)(r->timeout_ns / 1000 % 1000000)};
    if (tv.tv_sec == 0 && tv.tv_usec == 0)
        tv.tv_usec = 1; /* 0 would mean for ever */
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) != 0) {
        status = epdc_fail_errno(err, "fd socket: set timeout");
        goto err_close;
    }
    int rc;
    do {
        rc = connect(fd, (const struct sockaddr *)&addr, sizeof(addr));
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EISCONN) {
        status = fail_connect(r->path, err);
        goto err_close;
    }
    *fd_out = fd;
    return EPD_OK;

err_close:
    (void)close(fd); /* never used */
    return status;
}

static enum epd_status send_token(int sock, const struct epdc_redeem *r, struct epd_error *err)
{
    uint8_t token[EPD_TOKEN_BYTES];
    memcpy(token, r->token, sizeof(token));
    struct iovec iov = {.iov_base = token, .iov_len = sizeof(token)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    if (r->send_fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &r->send_fd, sizeof(int));
    }
    ssize_t n;
    do {
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof(token))
        return EPD_OK;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return epdc_fail(err, EPD_ETIMEDOUT, "fd socket %s: send timed out", r->path);
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
        return epdc_fail(err, EPD_EUNREACHABLE, "fd socket %s: closed by the daemon", r->path);
    return epdc_fail_errno(err, "fd socket %s: send token", r->path);
}

static void take_fds(struct msghdr *msg, struct answer *a)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n && a->fds < MAX_FDS; i++, a->fds++)
            memcpy(&a->fd[a->fds], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
}

static enum epd_status receive(int sock, const char *path, struct answer *a, struct epd_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &a->reply, .iov_len = sizeof(a->reply)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    do {
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return epdc_fail(err, EPD_ETIMEDOUT, "fd socket %s: no answer in time", path);
    if (n < 0 && errno != ECONNRESET)
        return epdc_fail_errno(err, "fd socket %s: receive", path);
    if (n <= 0)
        return epdc_fail(err, EPD_EUNREACHABLE, "fd socket %s: closed without an answer", path);
    take_fds(&msg, a);
    if ((size_t)n == sizeof(a->reply) && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return EPD_OK;
    close_fds(a);
    a->fds = 0;
    return epdc_fail(err, EPD_EINTERNAL, "fd socket %s: answer of %zd bytes, expected %zu", path, n,
                     sizeof(a->reply));
}

static enum epd_status check(const struct epdc_redeem *r, const struct answer *a,
                             struct epd_error *err)
{
    static const char *const what[] = {"?", "session", "fd grant", "import"};
    unsigned want = r->expect == EPD_FD_REPLY_GRANT ? 1u : 0u;
    if (a->reply.status != EPD_OK)
        return epdc_fail(err, (enum epd_status)a->reply.status,
                         "fd socket %s refused the %s token (%s); tokens work once, for 10 s, for "
                         "the process that asked",
                         r->path, what[r->expect & 3u],
                         epd_status_describe((enum epd_status)a->reply.status));
    if (a->reply.kind != r->expect || a->fds != want)
        return epdc_fail(err, EPD_EINTERNAL,
                         "fd socket %s: answer kind %u with %u fds, expected kind %u with %u",
                         r->path, a->reply.kind, a->fds, r->expect, want);
    return EPD_OK;
}

enum epd_status epdc_redeem(const struct epdc_redeem *redeem, int *fd_out, struct epd_error *err)
{
    int sock = -1;
    struct answer a = {.fds = 0};

    enum epd_status status = open_socket(redeem, &sock, err);
    if (status != EPD_OK)
        return status;
    status = send_token(sock, redeem, err);
    if (status == EPD_OK)
        status = receive(sock, redeem->path, &a, err);
    if (status == EPD_OK)
        status = check(redeem, &a, err);
    if (status != EPD_OK) {
        close_fds(&a);
        (void)close(sock); /* given up */
        return status;
    }
    if (redeem->expect == EPD_FD_REPLY_SESSION) {
        *fd_out = sock;
        return EPD_OK;
    }
    (void)close(sock); /* done with */
    if (redeem->expect == EPD_FD_REPLY_GRANT)
        *fd_out = a.fd[0];
    return EPD_OK;
}
