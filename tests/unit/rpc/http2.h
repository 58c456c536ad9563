/* An HTTP/2 client made by hand, for what gRPC's own client would never do. It reads nothing unless
 * told to. */
#ifndef EPD_TEST_RPC_HTTP2_H
#define EPD_TEST_RPC_HTTP2_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { H2_DATA = 0, H2_HEADERS = 1, H2_RST_STREAM = 3, H2_SETTINGS = 4, H2_PING = 6 };
enum { H2_END_STREAM = 1, H2_END_HEADERS = 4 };

static inline bool h2_connect_fd(int fd, const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    strncpy(addr.sun_path, path, sizeof(addr.sun_path) - 1);
    return connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
}

static inline int h2_connect(const char *path)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && h2_connect_fd(fd, path))
        return fd;
    close(fd);
    return -1;
}

static inline bool h2_put(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static inline bool h2_frame(int fd, uint8_t type, uint8_t flags, uint32_t stream,
                            const void *payload, size_t len)
{
    uint8_t bytes[9 + 16384] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type,
                                flags};
    for (unsigned i = 0; i < 4; i++)
        bytes[5 + i] = (uint8_t)(stream >> (24 - 8 * i));
    if (len > 0)
        memcpy(bytes + 9, payload, len);
    return h2_put(fd, bytes, 9 + len);
}

static inline bool h2_hello(int fd)
{
    return h2_put(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24) &&
           h2_frame(fd, H2_SETTINGS, 0, 0, NULL, 0);
}

/* The header block of a gRPC call, literal and without a table. */
static inline size_t h2_headers(uint8_t out[256], const char *path)
{
    static const uint8_t head[] = {0x83, 0x86}; /* POST, http */
    static const char tail[] = "\x01\x09localhost"
                               "\x00\x02te\x08trailers"
                               "\x0f\x10\x10"
                               "application/grpc";
    const size_t len = strlen(path);
    size_t n = sizeof(head);
    memcpy(out, head, n);
    out[n++] = 0x04; /* :path */
    out[n++] = (uint8_t)len;
    memcpy(out + n, path, len);
    n += len;
    memcpy(out + n, tail, sizeof(tail) - 1);
    return n + sizeof(tail) - 1;
}

/* Open a call; no message yet. */
static inline bool h2_open(int fd, uint32_t stream, const char *path, bool ended)
{
    uint8_t block[256];
    const size_t n = h2_headers(block, path);
    return h2_frame(fd, H2_HEADERS, (uint8_t)(H2_END_HEADERS | (ended ? H2_END_STREAM : 0)), stream,
                    block, n);
}

/* The message of a call, and its end; len < 16000. */
static inline bool h2_message(int fd, uint32_t stream, const void *msg, size_t len)
{
    uint8_t bytes[16384] = {0, 0, 0, (uint8_t)(len >> 8), (uint8_t)len};
    if (len > 0)
        memcpy(bytes + 5, msg, len);
    return h2_frame(fd, H2_DATA, H2_END_STREAM, stream, bytes, 5 + len);
}

/* Reads until `wanted` was among what came, or ms have passed, or the connection is over. */
static inline bool h2_sees(int fd, const void *wanted, size_t len, int ms)
{
    static uint8_t seen[1 << 16];
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < sizeof(seen) && poll(&p, 1, ms) == 1) {
        const ssize_t got = recv(fd, seen + n, sizeof(seen) - n, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        if (memmem(seen, n, wanted, len) != NULL)
            return true;
    }
    return false;
}

/* Reads on until the connection is over; false: it is not within ms. */
static inline bool h2_ends(int fd, int ms)
{
    char sink[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, ms) == 1)
        if (recv(fd, sink, sizeof(sink), 0) <= 0)
            return true;
    return false;
}

#endif
