/* A program that plays an engine: it answers every message at once, writes what it got to
 * EPD_FAKE_LOG, and misbehaves as EPD_FAKE says. No data plane. */
#ifndef EPD_TESTS_UNIT_CORE_FAKE_ENGINE_H
#define EPD_TESTS_UNIT_CORE_FAKE_ENGINE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/ipc/fdpass.h"
#include "daemon/ipc/memfd.h"
#include "proto/engine.h"
#include "proto/status.h"
#include "proto/version.h"

static const char *const g_types[] = {
    "?",         "CONFIG",     "PEER",     "PEER_GONE",  "CREATE",   "ADOPT",      "DROP",
    "GROUP_SET", "GROUP_DROP", "SEAT_SET", "SEAT_CLEAR", "DESC_SET", "DESC_CLEAR", "REVOKE",
    "FAIL",      "GENERATION", "ARM",      "PING",       "STOP",     "STATS"};

static inline void fake_note(unsigned device, unsigned type, const void *msg)
{
    char line[128];
    const struct epd_msg_epoch *e = msg;
    const struct epd_msg_seat *s = msg;
    int fd = open(getenv("EPD_FAKE_LOG"), O_WRONLY | O_APPEND | O_CLOEXEC);
    int n = snprintf(line, sizeof(line), "%u %s", device, g_types[type]);
    if (type == EPD_MSG_REVOKE || type == EPD_MSG_FAIL)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %lld", (long long)e->epoch);
    if (type == EPD_MSG_GENERATION || type == EPD_MSG_ARM)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %u %llx", e->generation,
                      (unsigned long long)e->present);
    if (type == EPD_MSG_SEAT_SET)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %u", s->replay);
    line[n++] = '\n';
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(9);
    (void)close(fd);
}

/* "mute:1:REVOKE;" in EPD_FAKE: device 1 does not answer REVOKE. "refuse" answers ENOMEM, "die"
 * exits. */
static inline bool fake_does(const char *what, unsigned device, unsigned type)
{
    char rule[64];
    const char *fake = getenv("EPD_FAKE");
    (void)snprintf(rule, sizeof(rule), "%s:%u:%s;", what, device, g_types[type]);
    return fake != NULL && strstr(fake, rule) != NULL;
}

static inline unsigned fake_fds(unsigned type, uint32_t device, uint64_t incarnation, int fds[3])
{
    void *page;
    if (type == EPD_MSG_CHUNK_CREATE)
        return epd_memfd_create("c", 1u << 21, true, &fds[0], NULL) == EPD_OK;
    if (type != EPD_MSG_CONFIG || epd_memfd_create("s", 4096, false, &fds[0], NULL) != EPD_OK ||
        epd_memfd_map(fds[0], 4096, true, &page, NULL) != EPD_OK)
        return 0;
    struct epd_status_page *status = page;
    *status = (struct epd_status_page){.magic = EPD_STATUS_MAGIC,
                                       .abi = EPD_ABI_VERSION,
                                       .device = device,
                                       .incarnation = incarnation,
                                       .state = EPD_ENGINE_RUNNING};
    fds[1] = eventfd(0, EFD_CLOEXEC);
    return epd_memfd_create("b", 4096, true, &fds[2], NULL) == EPD_OK ? 3 : 0;
}

static inline int fake_engine(unsigned device)
{
    uint64_t buf[EPD_MSG_MAX_BYTES / 8];
    uint64_t incarnation = 0;
    for (;;) {
        int in[4], out[3];
        unsigned n_in;
        size_t len;
        if (epd_fd_recv(EPD_ENGINE_FD, buf, sizeof(buf), &len, in, 4, &n_in, NULL) != EPD_OK)
            return 0;
        for (unsigned i = 0; i < n_in; i++)
            (void)close(in[i]);
        const struct epd_msg_header *h = (const void *)buf;
        if (h->type == EPD_MSG_CONFIG)
            incarnation = ((const struct epd_msg_config *)(const void *)buf)->incarnation;
        if (h->type != EPD_MSG_PING)
            fake_note(device, h->type, buf);
        if (fake_does("die", device, h->type))
            _exit(3);
        if (fake_does("mute", device, h->type))
            continue;
        struct epd_msg_reply r = {.h = {.type = EPD_MSG_REPLY, .bytes = sizeof(r), .seq = h->seq}};
        unsigned n = 0;
        if (fake_does("refuse", device, h->type))
            r.status = EPD_ENOMEM;
        else
            n = fake_fds(h->type, device, incarnation, out);
        if (epd_fd_send(EPD_ENGINE_FD, &r, sizeof(r), out, n, NULL) != EPD_OK)
            return 0;
        for (unsigned i = 0; i < n; i++)
            (void)close(out[i]);
        if (h->type == EPD_MSG_STOP)
            return 0;
    }
}

#endif
