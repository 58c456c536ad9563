#include "client/internal.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/attach.h"
#include "client/fail.h"
#include "client/fds.h"

#define DETACH_TIMEOUT_NS 1000000000ll
#define DAEMON_EXIT_MS 100 /* between a dying daemon's sockets closing and its pidfd telling */

static const struct epdc_method detach = {EPDC_CONTROL_PREFIX "Detach",
                                          &epd__v1__empty__descriptor};

/* ---- alive or not ----------------------------------------------------------------------- */

enum epd_status epdc_session_lose(struct epd *epd, enum epd_status why)
{
    int32_t expected = EPD_OK;
    if (__atomic_compare_exchange_n(&epd->lost, &expected, (int32_t)why, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        return why;
    return (enum epd_status)expected;
}

static bool connection_ended(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&p, 1, 0) <= 0)
        return false;
    if (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
        return true;
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

enum epd_status epdc_session_probe(struct epd *epd)
{
    enum epd_status lost = epdc_session_lost(epd);
    if (lost != EPD_OK || !connection_ended(epd->session_fd))
        return lost;

    enum epd_status why = EPD_EDAEMONLOST;
    if (epd->daemon_fd >= 0) {
        struct pollfd p = {.fd = epd->daemon_fd, .events = POLLIN};
        if (poll(&p, 1, DAEMON_EXIT_MS) == 0)
            why = EPD_ESESSIONLOST; /* it lives, and has ended this session alone */
    }
    return epdc_session_lose(epd, why);
}

enum epd_status epdc_session_usable(const struct epd *epd, struct epd_error *err)
{
    if (epdc_owner_forked(&epd->owner))
        return epdc_fail(err, EPD_EFORKED,
                         "session belongs to process %d; this is a forked child: open one here",
                         (int)epd->owner.pid);
    enum epd_status lost = epdc_session_lost(epd);
    if (lost != EPD_OK)
        return epdc_fail(err, lost, "session %llu is over (%s): close it and open a new one",
                         (unsigned long long)epd->id, epd_status_describe(lost));
    return EPD_OK;
}

enum epd_status epd_session_check(struct epd *epd)
{
    if (!epd)
        return EPD_EINVAL;
    return epdc_owner_forked(&epd->owner) ? EPD_EFORKED : epdc_session_probe(epd);
}

uint64_t epd_session_id(const struct epd *epd)
{
    return epd->id;
}

/* ---- calls and grants ------------------------------------------------------------------- */

void epdc_session_message(struct epd *epd, Epd__V1__Session *out)
{
    epd__v1__session__init(out);
    out->id = epd->id;
    out->key = (ProtobufCBinaryData){.len = sizeof(epd->key), .data = epd->key};
}

enum epd_status epdc_session_call(struct epd *epd, const struct epdc_method *method,
                                  const ProtobufCMessage *req, ProtobufCMessage **reply_out,
                                  struct epd_error *err)
{
    enum epd_status status = epdc_call(&epd->transport, method, req, reply_out, err);
    if (status == EPD_ESESSIONLOST)
        return epdc_session_lose(epd, status);
    if (status != EPD_EUNREACHABLE)
        return status;
    /* The session's own connection knows better whether the daemon is gone. */
    enum epd_status lost = epdc_session_probe(epd);
    if (lost == EPD_OK)
        return status;
    return epdc_fail(err, lost, "session %llu is over (%s): close it and open a new one",
                     (unsigned long long)epd->id, epd_status_describe(lost));
}

static enum epd_status redeem(struct epd *epd, const Epd__V1__FdGrant *g, struct epd_error *err)
{
    static const char *const kinds[] = {
        [EPDC_MAP_CHUNK] = "chunk", [EPDC_MAP_STATUS] = "status", [EPDC_MAP_DOORBELL] = "doorbell"};
    enum epdc_map_kind kind = EPDC_MAP_CHUNK;
    while (kind <= EPDC_MAP_DOORBELL && strcmp(kinds[kind], g->kind) != 0)
        kind++;
    if (kind > EPDC_MAP_DOORBELL || g->token.len != EPD_TOKEN_BYTES)
        return epdc_fail(err, EPD_EINTERNAL, "daemon granted a '%.20s' with a token of %zu bytes",
                         g->kind, g->token.len);

    int fd = -1;
    const struct epdc_redeem how = {
        .path = epd->fd_socket,
        .token = g->token.data,
        .timeout_ns = epd->transport.timeout_ns,
        .expect = EPD_FD_REPLY_GRANT,
        .send_fd = -1,
    };
    enum epd_status status = epdc_redeem(&how, &fd, err);
    if (status != EPD_OK)
        return status;
    return epdc_maps_add(&epd->maps, kind, g->id, g->bytes, fd, err);
}

enum epd_status epdc_session_redeem(struct epd *epd, Epd__V1__FdGrant **grants, size_t n,
                                    struct epd_error *err)
{
    /* All of them, also after a failure: each is given once. */
    enum epd_status result = EPD_OK;
    for (size_t i = 0; i < n; i++) {
        enum epd_status status = redeem(epd, grants[i], result == EPD_OK ? err : NULL);
        if (result == EPD_OK)
            result = status;
    }
    return result;
}

/* ---- open and close --------------------------------------------------------------------- */

static void free_handles(struct epd *epd, bool forked)
{
    while (epd->leases) {
        struct epd_lease *lease = epd->leases;
        epd->leases = lease->next;
        epdc_lease_destroy(lease, forked);
    }
    while (epd->buffers) {
        struct epd_buffer *buffer = epd->buffers;
        epd->buffers = buffer->next;
        epdc_buffer_destroy(buffer, forked);
    }
    epdc_maps_fini(&epd->maps, forked);
}

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd); /* nothing to do about a failure */
}

/* In a forked child. What another thread had half changed at the fork stays allocated. */
static void forget(struct epd *epd)
{
    if (pthread_mutex_trylock(&epd->lock) != 0)
        return;
    free_handles(epd, true);
    free(epd->socket);
    explicit_bzero(epd->key, sizeof(epd->key));
    free(epd); /* with its lock held: nobody else is here */
}

static void detach_session(struct epd *epd)
{
    Epd__V1__Session session;
    Epd__V1__DetachRequest req = EPD__V1__DETACH_REQUEST__INIT;
    epdc_session_message(epd, &session);
    req.session = &session;
    if (epd->transport.timeout_ns > DETACH_TIMEOUT_NS)
        epd->transport.timeout_ns = DETACH_TIMEOUT_NS;
    /* Closing the connection ends the session as well; this makes it happen before we return. */
    (void)epdc_call(&epd->transport, &detach, &req.base, NULL, NULL);
}

void epd_close(struct epd *epd)
{
    if (!epd)
        return;
    if (epdc_owner_forked(&epd->owner)) {
        forget(epd);
        return;
    }
    if (epd->session_fd >= 0 && epdc_session_probe(epd) == EPD_OK)
        detach_session(epd);
    free_handles(epd, false);
    close_fd(epd->session_fd);
    close_fd(epd->daemon_fd);
    epdc_transport_close(&epd->transport);
    (void)pthread_mutex_destroy(&epd->lock);
    explicit_bzero(epd->key, sizeof(epd->key));
    free(epd->socket);
    free(epd);
}

enum epd_status epd_open(const struct epd_open_options *options, struct epd **out,
                         struct epd_error *err)
{
    static const struct epd_open_options defaults = EPD_OPEN_OPTIONS_INIT;
    const struct epd_open_options *o = options ? options : &defaults;
    if (!out)
        return epdc_fail(err, EPD_EINVAL, "out is NULL");
    if (o->size != sizeof(*o))
        return epdc_fail(err, EPD_EINVAL,
                         "epd_open_options.size is %u, expected %zu: initialise "
                         "it with EPD_OPEN_OPTIONS_INIT",
                         o->size, sizeof(*o));
    if (o->timeout_ns < 0)
        return epdc_fail(err, EPD_EINVAL, "timeout_ns is %lld, must be 0 (default) or more",
                         (long long)o->timeout_ns);

    struct epd *epd = calloc(1, sizeof(*epd));
    if (!epd)
        return epdc_fail(err, EPD_ENOMEM, "no memory for a session");
    epd->session_fd = -1;
    epd->daemon_fd = -1;
    epdc_owner_init(&epd->owner);
    (void)pthread_mutex_init(&epd->lock, NULL); /* cannot fail without attributes */
    enum epd_status status = epdc_attach(epd, o, err);
    if (status != EPD_OK) {
        epd_close(epd);
        return status;
    }
    *out = epd;
    return EPD_OK;
}
