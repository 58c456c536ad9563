#include "tests/support/raw.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/admin.h"
#include "proto/version.h"
#include "tests/support/proc.h"
#include "tests/support/workload.h"

enum epd_status raw_call(const char *socket, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **reply_out,
                         struct epd_error *err)
{
    uint8_t *data = NULL;
    size_t len = 0;
    struct epd_admin *admin = NULL;
    uint8_t *packed = need_memory(protobuf_c_message_get_packed_size(request));
    const size_t n = protobuf_c_message_pack(request, packed);
    enum epd_status status = epd_admin_open(socket, &admin, err);
    if (status == EPD_OK)
        status = epd_admin_call(admin, method, packed, n, (int64_t)slow_ms(5000) * 1000000, &data,
                                &len, err);
    if (status == EPD_OK && reply_out) {
        *reply_out = protobuf_c_message_unpack(reply_type, NULL, len, data);
        status = *reply_out ? EPD_OK : EPD_EINTERNAL;
    }
    free(packed);
    free(data);
    epd_admin_close(admin);
    return status;
}

enum epd_status raw_attach(const char *socket, uint32_t protocol_delta, uint32_t abi_delta,
                           struct raw_session *out, struct epd_error *err)
{
    Epd__V1__AttachRequest req = EPD__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    char name[] = "raw", version[] = EPD_VERSION;
    req.protocol = EPD_PROTOCOL_VERSION + protocol_delta;
    req.abi = EPD_ABI_VERSION + abi_delta;
    req.name = name;
    req.version = version;
    enum epd_status status =
        raw_call(socket, "Attach", &req.base, &epd__v1__attach_reply__descriptor, &message, err);
    if (status != EPD_OK)
        return status;
    const Epd__V1__AttachReply *r = (const Epd__V1__AttachReply *)(const void *)message;
    if (r->session_key.len == 16 && r->token.len == 16) {
        out->id = r->session;
        memcpy(out->key, r->session_key.data, 16);
        memcpy(out->token, r->token.data, 16);
    } else {
        status = EPD_EINTERNAL;
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return status;
}

static int receive(struct raw_answer *a)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(RAW_FDS * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &a->reply, .iov_len = sizeof(a->reply)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(a->sock, &msg, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(a->reply))
        return 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < n && a->fds < RAW_FDS; i++)
            memcpy(&a->fd[a->fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    return 1;
}

void raw_redeem(const char *socket_path, const void *token, size_t n, struct raw_answer *out)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    *out = (struct raw_answer){.got = -1};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.90s.fd", socket_path);
    out->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(out->sock, (struct sockaddr *)&addr, sizeof(addr)) != 0 || n == 0)
        return;
    if (send(out->sock, token, n, MSG_NOSIGNAL) != (ssize_t)n)
        return;
    struct pollfd p = {.fd = out->sock, .events = POLLIN};
    if (poll(&p, 1, slow_ms(5000)) == 1)
        out->got = receive(out);
}

void raw_answer_close(struct raw_answer *a)
{
    for (unsigned i = 0; i < a->fds; i++)
        (void)close(a->fd[i]);
    (void)close(a->sock);
    *a = (struct raw_answer){.sock = -1};
}
