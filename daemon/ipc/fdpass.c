#include "daemon/ipc/fdpass.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/util.h"

union control {
    char bytes[CMSG_SPACE(EPD_FDPASS_MAX * sizeof(int))];
    struct cmsghdr align;
};

enum epd_status epd_fd_send(int sock, const void *buf, size_t len, const int *fds, unsigned n_fds,
                            struct epd_error *err)
{
    if (n_fds > EPD_FDPASS_MAX)
        return epd_fail(err, EPD_EINVAL, "%u file descriptors, at most %u", n_fds, EPD_FDPASS_MAX);
    union control control = {{0}};
    struct iovec iov = {(void *)(uintptr_t)buf, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    ssize_t n;
    do
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return EPD_OK;
    if (errno == EAGAIN)
        return epd_fail(err, EPD_EAGAIN, "socket is full");
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return epd_fail(err, EPD_ESESSIONLOST, "peer is gone");
    return epd_fail_errno(err, "sendmsg of %zu bytes", len);
}

static unsigned collect(struct msghdr *msg, int *fds, unsigned cap, bool *overflow)
{
    unsigned n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (n < cap)
                fds[n++] = fd;
            else {
                *overflow = true;
                epd_close_fd(&fd);
            }
        }
    }
    return n;
}

enum epd_status epd_fd_recv(int sock, void *buf, size_t cap, size_t *len_out, int *fds_out,
                            unsigned fds_cap, unsigned *n_fds_out, struct epd_error *err)
{
    union control control;
    struct iovec iov = {buf, cap};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN)
            return epd_fail(err, EPD_EAGAIN, "no datagram");
        if (errno == ECONNRESET || errno == ENOTCONN)
            return epd_fail(err, EPD_ESESSIONLOST, "peer is gone");
        return epd_fail_errno(err, "recvmsg");
    }
    bool overflow = false;
    unsigned n_fds = collect(&msg, fds_out, fds_cap, &overflow);
    if (n == 0 && n_fds == 0 && !overflow)
        return epd_fail(err, EPD_ESESSIONLOST, "peer closed the connection");
    if (overflow || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        while (n_fds > 0)
            epd_close_fd(&fds_out[--n_fds]);
        return epd_fail(err, EPD_EINVAL,
                        (msg.msg_flags & MSG_TRUNC) != 0
                            ? "datagram is larger than %zu bytes"
                            : "datagram of %zu bytes lost descriptors: more than %u, or this "
                              "process may open no more",
                        (msg.msg_flags & MSG_TRUNC) != 0 ? cap : (size_t)n, fds_cap);
    }
    *len_out = (size_t)n;
    *n_fds_out = n_fds;
    return EPD_OK;
}
