#include "client/attach.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/fail.h"
#include "client/fds.h"
#include "client/internal.h"
#include "proto/sockpath.h"
#include "proto/version.h"

#define BACKOFF_FIRST_NS 5000000
#define BACKOFF_MAX_NS 100000000
#define NAME_MAX_BYTES 63u
#define SPIN_CPUS 4 /* with no more than these, spinning takes time from the engine */
#define SPIN_US 20u /* the default on larger machines */
#define SPIN_MAX_US 100000u

static const struct epdc_method attach = {EPDC_CONTROL_PREFIX "Attach",
                                          &epd__v1__attach_reply__descriptor};

/* ---- the socket ------------------------------------------------------------------------- */

enum epd_status epdc_socket_path(const char *flag, char **out, struct epd_error *err)
{
    char path[EPD_SOCKPATH_MAX];
    const char *problem = NULL;
    if (epd_socket_path(flag, NULL, path, sizeof(path), &problem) != 0)
        return epdc_fail(err, EPD_EINVAL, "%s", problem);
    char *copy = strdup(path);
    if (!copy)
        return epdc_fail(err, EPD_ENOMEM, "no memory for the socket path");
    *out = copy;
    return EPD_OK;
}

enum epd_status epdc_explain_unreachable(const char *socket_path, struct epd_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = strlen(socket_path);
    if (len >= sizeof(addr.sun_path))
        return EPD_EUNREACHABLE;
    memcpy(addr.sun_path, socket_path, len + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return EPD_EUNREACHABLE;
    int rc = connect(fd, (const struct sockaddr *)&addr, sizeof(addr));
    int code = rc == 0 ? 0 : errno;
    (void)close(fd); /* it was a look only */

    switch (code) {
    case ENOENT:
        return epdc_fail(err, EPD_EUNREACHABLE,
                         "no socket %s: start epd, or name its socket in EPD_SOCKET", socket_path);
    case ECONNREFUSED:
        return epdc_fail(err, EPD_EUNREACHABLE, "%s: nobody listens there; start epd again",
                         socket_path);
    case EACCES:
        return epdc_fail(err, EPD_EPERM, "%s: permission denied; join the socket's group",
                         socket_path);
    default:
        return EPD_EUNREACHABLE; /* the call's own message stays */
    }
}

/* ---- attach, once ----------------------------------------------------------------------- */

static enum epd_status check_reply(const Epd__V1__AttachReply *r, struct epd_error *err)
{
    if (r->protocol != EPD_PROTOCOL_VERSION || r->abi != EPD_ABI_VERSION)
        return epdc_fail(err, EPD_EVERSION,
                         "libepd %s has protocol %u, ABI %u; epd %.32s has protocol %u, ABI %u: "
                         "install one release on both sides",
                         EPD_VERSION, EPD_PROTOCOL_VERSION, EPD_ABI_VERSION, r->version,
                         r->protocol, r->abi);
    if (r->session_key.len != EPDC_KEY_BYTES || r->token.len != EPD_TOKEN_BYTES)
        return epdc_fail(err, EPD_EINTERNAL, "daemon's reply: key of %zu, token of %zu bytes",
                         r->session_key.len, r->token.len);
    return EPD_OK;
}

/* The daemon's path if it exists here, else the rule: a container may mount the directory in
 * another place. */
static enum epd_status set_fd_socket(struct epd *epd, const char *told, struct epd_error *err)
{
    size_t size = sizeof(epd->fd_socket);
    int n = snprintf(epd->fd_socket, size, "%s", told);
    if (n > 0 && (size_t)n < size && access(epd->fd_socket, F_OK) == 0)
        return EPD_OK;
    n = snprintf(epd->fd_socket, size, "%s" EPD_SOCKPATH_FD_SUFFIX, epd->socket);
    if (n < 0 || (size_t)n >= size)
        return epdc_fail(err, EPD_EINVAL, "%s.fd is longer than a socket path may be", epd->socket);
    return EPD_OK;
}

/* A handle on the daemon's process, to tell its death from the session's; optional. */
static int open_daemon(int session_fd)
{
    struct ucred cred = {.pid = 0};
    socklen_t len = sizeof(cred);
    if (getsockopt(session_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || cred.pid <= 0)
        return -1; /* it lives in a pid namespace that we cannot see */
    return (int)syscall(SYS_pidfd_open, cred.pid, 0);
}

static enum epd_status connect_session(struct epd *epd, const uint8_t *token, struct epd_error *err)
{
    const struct epdc_redeem redeem = {
        .path = epd->fd_socket,
        .token = token,
        .timeout_ns = epd->transport.timeout_ns,
        .expect = EPD_FD_REPLY_SESSION,
        .send_fd = -1,
    };
    enum epd_status status = epdc_redeem(&redeem, &epd->session_fd, err);
    if (status == EPD_OK)
        epd->daemon_fd = open_daemon(epd->session_fd);
    return status;
}

static enum epd_status attach_once(struct epd *epd, const char *name, struct epd_error *err)
{
    Epd__V1__AttachRequest req = EPD__V1__ATTACH_REQUEST__INIT;
    char version[] = EPD_VERSION;
    ProtobufCMessage *reply = NULL;
    req.protocol = EPD_PROTOCOL_VERSION;
    req.abi = EPD_ABI_VERSION;
    req.name = (char *)(uintptr_t)name; /* only read */
    req.version = version;
    enum epd_status status = epdc_call(&epd->transport, &attach, &req.base, &reply, err);
    if (status == EPD_EUNREACHABLE)
        return epdc_explain_unreachable(epd->socket, err);
    if (status != EPD_OK)
        return status;

    const Epd__V1__AttachReply *r = (const Epd__V1__AttachReply *)(const void *)reply;
    status = check_reply(r, err);
    if (status == EPD_OK)
        status = set_fd_socket(epd, r->fd_socket, err);
    if (status == EPD_OK) {
        epd->id = r->session;
        memcpy(epd->key, r->session_key.data, sizeof(epd->key));
        status = connect_session(epd, r->token.data, err);
    }
    epdc_reply_free(reply);
    return status;
}

/* ---- attach, with patience -------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail */
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void nap(int64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)nanosleep(&ts, NULL); /* shorter is fine */
}

static enum epd_status attach_retry(struct epd *epd, const char *name, struct epd_error *err)
{
    int64_t timeout = epd->transport.timeout_ns;
    int64_t now = now_ns();
    int64_t deadline = timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
    int64_t backoff = BACKOFF_FIRST_NS;
    enum epd_status status;
    for (;;) {
        status = attach_once(epd, name, err);
        int64_t left = deadline - now_ns();
        if ((status != EPD_EUNREACHABLE && status != EPD_EDRAINING) || left <= backoff)
            break;
        nap(backoff);
        backoff = backoff < BACKOFF_MAX_NS / 2 ? backoff * 2 : BACKOFF_MAX_NS;
        epd->transport.timeout_ns = left;
    }
    epd->transport.timeout_ns = timeout;
    return status;
}

/* How long waits spin before they sleep: EPD_SPIN_US, else by the number of CPUs allowed. */
static uint64_t spin_ns(void)
{
    const char *text = getenv("EPD_SPIN_US");
    if (text && *text) {
        char *end;
        unsigned long us = strtoul(text, &end, 10);
        if (*end == '\0')
            return (us > SPIN_MAX_US ? SPIN_MAX_US : us) * 1000ull;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) <= SPIN_CPUS)
        return 0;
    return SPIN_US * 1000ull;
}

enum epd_status epdc_attach(struct epd *epd, const struct epd_open_options *options,
                            struct epd_error *err)
{
    const char *given = options->name ? options->name : program_invocation_short_name;
    char name[NAME_MAX_BYTES + 1];
    if (options->name && strlen(given) > NAME_MAX_BYTES)
        return epdc_fail(err, EPD_EINVAL, "name is %zu bytes, at most %u fit", strlen(given),
                         NAME_MAX_BYTES);
    (void)snprintf(name, sizeof(name), "%s", given); /* a program's own name is cut */

    enum epd_status status = epdc_socket_path(options->socket, &epd->socket, err);
    if (status != EPD_OK)
        return status;
    epd->spin_ns = spin_ns();
    status = epdc_transport_open(&epd->transport, epd->socket,
                                 options->timeout_ns ? options->timeout_ns : EPDC_TIMEOUT_NS, err);
    if (status != EPD_OK)
        return status;
    return options->wait_daemon ? attach_retry(epd, name, err) : attach_once(epd, name, err);
}
