/* Redeeming tokens at a broker that the test plays, and mapping what comes back. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/fds.h"
#include "client/maps.h"
#include "proto/version.h"

static const uint8_t token[EPD_TOKEN_BYTES] = "0123456789abcdef";

/* What the broker does with its one connection. */
struct broker {
    char dir[32], path[64];
    int listener;
    pthread_t thread;
    struct epd_fd_reply reply;
    unsigned fds;     /* attached */
    size_t bytes;     /* of the reply sent; 0: hang up without one */
    unsigned hold_ms; /* before it answers */
    int got_fd;       /* -1: none came with the token */
    int token_right;
};

static void *broker_main(void *arg)
{
    struct broker *b = arg;
    int sock = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC);
    uint8_t buf[64];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    b->token_right = n == EPD_TOKEN_BYTES && memcmp(buf, token, EPD_TOKEN_BYTES) == 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c)
        memcpy(&b->got_fd, CMSG_DATA(c), sizeof(int));

    (void)usleep(b->hold_ms * 1000);
    int fds[4];
    for (unsigned i = 0; i < b->fds; i++) {
        fds[i] = memfd_create("granted", MFD_CLOEXEC);
        assert_int_equal(ftruncate(fds[i], 8192), 0);
    }
    iov = (struct iovec){.iov_base = &b->reply, .iov_len = b->bytes};
    msg = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
    if (b->fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(b->fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(b->fds * sizeof(int))};
        memcpy(CMSG_DATA(c), fds, b->fds * sizeof(int));
    }
    if (b->bytes)
        (void)sendmsg(sock, &msg, MSG_NOSIGNAL);
    for (unsigned i = 0; i < b->fds; i++)
        (void)close(fds[i]);
    (void)close(sock);
    return NULL;
}

static void broker_start(struct broker *b)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    b->got_fd = -1;
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/epd-fds.XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->path, sizeof(b->path), "%s/s.fd", b->dir);
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", b->path);
    b->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(b->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(b->listener, 8), 0);
    assert_int_equal(pthread_create(&b->thread, NULL, broker_main, b), 0);
}

static void broker_stop(struct broker *b)
{
    assert_int_equal(pthread_join(b->thread, NULL), 0);
    (void)close(b->listener);
    (void)unlink(b->path);
    (void)rmdir(b->dir);
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* One exchange; *fd_out as the library gave it. */
static enum epd_status redeem(struct broker *b, uint32_t expect_kind, int send_fd, int *fd_out,
                              struct epd_error *err)
{
    broker_start(b);
    const struct epdc_redeem r = {.path = b->path,
                                  .token = token,
                                  .timeout_ns = 300000000,
                                  .expect = expect_kind,
                                  .send_fd = send_fd};
    enum epd_status status = epdc_redeem(&r, fd_out, err);
    broker_stop(b);
    return status;
}

static void grant(void **state)
{
    (void)state;
    struct broker b = {
        .reply = {.kind = EPD_FD_REPLY_GRANT}, .fds = 1, .bytes = sizeof(struct epd_fd_reply)};
    struct epd_error err;
    int fd = -1;
    assert_int_equal(redeem(&b, EPD_FD_REPLY_GRANT, -1, &fd, &err), EPD_OK);
    assert_true(b.token_right && b.got_fd == -1);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);

    struct epdc_maps maps = {NULL};
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_CHUNK, 5, 8192, fd, &err), EPD_OK);
    struct epdc_map *m = epdc_maps_get(&maps, EPDC_MAP_CHUNK, 5);
    assert_non_null(m);
    memset(m->addr, 1, 8192);
    assert_null(epdc_maps_get(&maps, EPDC_MAP_CHUNK, 6));
    assert_null(epdc_maps_get(&maps, EPDC_MAP_STATUS, 5));
    epdc_maps_fini(&maps, 0);
    memset(m->addr, 2, 8192); /* our reference keeps it */
    epdc_map_put(m);
}

static void session_and_import(void **state)
{
    (void)state;
    struct broker b = {.reply = {.kind = EPD_FD_REPLY_SESSION},
                       .bytes = sizeof(struct epd_fd_reply)};
    struct epd_error err;
    int fd = -1;
    assert_int_equal(redeem(&b, EPD_FD_REPLY_SESSION, -1, &fd, &err), EPD_OK);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    (void)close(fd);

    int memfd = memfd_create("lent", MFD_CLOEXEC);
    b.reply.kind = EPD_FD_REPLY_IMPORT;
    assert_int_equal(redeem(&b, EPD_FD_REPLY_IMPORT, memfd, NULL, &err), EPD_OK);
    assert_true(b.token_right && b.got_fd >= 0);
    (void)close(b.got_fd);
    (void)close(memfd);
}

static void refusals(void **state)
{
    (void)state;
    const size_t whole = sizeof(struct epd_fd_reply);
    const struct {
        struct broker b;
        enum epd_status status;
    } cases[] = {
        {{.reply = {.status = EPD_EPERM, .kind = EPD_FD_REPLY_GRANT}, .bytes = whole}, EPD_EPERM},
        {{.reply = {.kind = EPD_FD_REPLY_GRANT}, .bytes = whole}, EPD_EINTERNAL},
        {{.reply = {.kind = EPD_FD_REPLY_GRANT}, .bytes = whole, .fds = 2}, EPD_EINTERNAL},
        {{.reply = {.kind = EPD_FD_REPLY_IMPORT}, .bytes = whole, .fds = 1}, EPD_EINTERNAL},
        {{.reply = {.kind = EPD_FD_REPLY_GRANT}, .bytes = 8, .fds = 1}, EPD_EINTERNAL},
        {{.bytes = 0}, EPD_EUNREACHABLE},
        {{.bytes = whole, .hold_ms = 700}, EPD_ETIMEDOUT},
    };
    unsigned before = open_fds();
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct broker b = cases[i].b;
        struct epd_error err = {.status = EPD_OK};
        int fd = -77;
        assert_int_equal(redeem(&b, EPD_FD_REPLY_GRANT, -1, &fd, &err), cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_int_equal(fd, -77); /* outputs only on success */
        assert_non_null(strstr(err.message, b.path));
    }
    assert_int_equal(open_fds(), before);
}

static void nobody_there(void **state)
{
    (void)state;
    char path[200];
    struct epd_error err;
    struct epdc_redeem r = {.path = "/tmp/epd-no-such.fd",
                            .token = token,
                            .timeout_ns = 1000000,
                            .expect = EPD_FD_REPLY_GRANT,
                            .send_fd = -1};
    int fd = -1;
    assert_int_equal(epdc_redeem(&r, &fd, &err), EPD_EUNREACHABLE);
    memset(path, 'x', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    r.path = path;
    assert_int_equal(epdc_redeem(&r, &fd, &err), EPD_EINVAL);
}

static int page_fd(uint64_t incarnation, uint32_t abi)
{
    int fd = memfd_create("page", MFD_CLOEXEC);
    const struct epd_status_page page = {
        .magic = EPD_STATUS_MAGIC, .abi = abi, .device = 1, .incarnation = incarnation};
    assert_int_equal(ftruncate(fd, EPD_STATUS_PAGE_BYTES), 0);
    assert_int_equal(pwrite(fd, &page, sizeof(page), 0), sizeof(page));
    return fd;
}

static void status_page_is_replaced(void **state)
{
    (void)state;
    struct epdc_maps maps = {NULL};
    struct epd_error err;
    unsigned before = open_fds();
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_STATUS, 1, 0, page_fd(1, EPD_ABI_VERSION), &err),
                     EPD_OK);
    struct epdc_map *old = epdc_maps_get(&maps, EPDC_MAP_STATUS, 1);
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_STATUS, 1, 0, page_fd(2, EPD_ABI_VERSION), &err),
                     EPD_OK);
    struct epdc_map *new = epdc_maps_get(&maps, EPDC_MAP_STATUS, 1);
    assert_int_equal(epdc_map_incarnation(old), 1);
    assert_int_equal(epdc_map_incarnation(new), 2);
    epdc_map_put(old);
    epdc_map_put(new);
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_STATUS, 1, 0, page_fd(3, 77), &err),
                     EPD_EVERSION);
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_STATUS, 2, 0, page_fd(3, EPD_ABI_VERSION), &err),
                     EPD_EINTERNAL);
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_CHUNK, 9, 1 << 20, page_fd(1, 1), &err),
                     EPD_EINTERNAL); /* smaller than granted */
    epdc_maps_fini(&maps, 0);
    assert_int_equal(open_fds(), before);
}

/* The page of a mapping is absent in a child: touching it is a fault. */
static void child_has_no_mapping(void **state)
{
    (void)state;
    struct epdc_maps maps = {NULL};
    struct epd_error err;
    int fd = memfd_create("chunk", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(epdc_maps_add(&maps, EPDC_MAP_CHUNK, 1, 4096, fd, &err), EPD_OK);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        unsigned char in_core;
        int absent = mincore(maps.head->addr, 4096, &in_core) != 0 && errno == ENOMEM;
        epdc_maps_fini(&maps, 1);
        _exit(absent ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    epdc_maps_fini(&maps, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grant),
        cmocka_unit_test(session_and_import),
        cmocka_unit_test(refusals),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(status_page_is_replaced),
        cmocka_unit_test(child_has_no_mapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
