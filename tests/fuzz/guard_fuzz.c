/* Any bytes from a client through the frame guard's relay, in pieces: what comes out at the other
 * end is a prefix of what went in, and the guard survives. */
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/rpc/guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct epd_guard *guard;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (guard == NULL && epd_guard_create(&guard, NULL) != EPD_OK)
        abort();
    int pair[2], inner = -1;
    if (size > 16384 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return 0;
    if (epd_guard_add(guard, &pair[1], &inner, NULL) != EPD_OK)
        abort();
    uint8_t sent[16384 + sizeof(preface)], got[sizeof(sent)];
    const size_t head = size > 0 && (data[0] & 1) ? sizeof(preface) - 1 : 0;
    memcpy(sent, preface, head);
    memcpy(sent + head, data, size);
    (void)!send(pair[0], sent, head + size, MSG_NOSIGNAL);
    (void)shutdown(pair[0], SHUT_WR);
    size_t n = 0;
    for (struct pollfd p = {.fd = inner, .events = POLLIN}; poll(&p, 1, 2000) > 0;) {
        const ssize_t k = recv(inner, got + n, sizeof(got) - n, MSG_DONTWAIT);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    if (n > head + size || memcmp(got, sent, n) != 0)
        abort();
    close(inner);
    close(pair[0]);
    return 0;
}
