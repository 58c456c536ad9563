#define EPD_LOG_COMPONENT "rpc"
#include "daemon/rpc/server_internal.h"

#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/rpc/guard.h"

/* gRPC names the connection of a call by the number of the descriptor that it was given. Numbers
 * are reused: the minimum of the next one rotates, so that a late call of a dead connection is not
 * taken for a new peer's. */
#define FD_MIN 256

static struct epd_rpc_conn **bucket(struct epd_rpc_server *server, int grpc_fd)
{
    return &server->conns[(unsigned)grpc_fd % EPD_RPC_CONN_BUCKETS];
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct epd_rpc_conn *conn = handle->data;
    struct epd_rpc_server *server = conn->server;
    epd_close_fd(&conn->fd);
    free(conn);
    epd_rpc_handle_closed(server);
}

static void conn_close(struct epd_rpc_conn *conn)
{
    struct epd_rpc_conn **at = bucket(conn->server, conn->grpc_fd);
    while (*at != conn)
        at = &(*at)->link;
    *at = conn->link;
    conn->server->n_conns--;
    conn->uid->conns--;
    (void)uv_poll_stop(&conn->poll);
    uv_close((uv_handle_t *)&conn->poll, on_poll_closed);
}

static void on_disconnect(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    conn_close(poll->data);
}

static int next_fd(struct epd_rpc_server *server)
{
    struct rlimit limit;
    const int top = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536
                        ? (int)limit.rlim_cur
                        : 65536;
    if (server->next_fd < FD_MIN || server->next_fd > top - top / 8)
        server->next_fd = top > 2 * FD_MIN ? FD_MIN : 3;
    return server->next_fd++;
}

/* Takes over conn and its fd, also on failure. */
static enum epd_status watch(struct epd_rpc_conn *conn, struct epd_error *err)
{
    struct epd_rpc_server *server = conn->server;
    int rc = uv_poll_init(server->loop, &conn->poll, conn->fd);
    if (rc != 0) {
        epd_close_fd(&conn->fd);
        free(conn);
        return epd_fail(err, EPD_ESYS, "uv_poll_init: %s", uv_strerror(rc));
    }
    conn->poll.data = conn;
    server->open_handles++;
    struct epd_rpc_conn **at = bucket(server, conn->grpc_fd);
    conn->link = *at;
    *at = conn;
    server->n_conns++;
    conn->uid->conns++;
    rc = uv_poll_start(&conn->poll, UV_DISCONNECT, on_disconnect);
    if (rc != 0) {
        conn_close(conn);
        return epd_fail(err, EPD_ESYS, "uv_poll_start: %s", uv_strerror(rc));
    }
    return EPD_OK;
}

/* The end that gRPC reads: the client's socket, or with the guard the inner end of its relay. In:
 * *fd the client's socket. Out: *fd the end, *given_out its number for gRPC. */
static enum epd_status open_ends(struct epd_rpc_server *server, int *fd, int *given_out,
                                 struct epd_error *err)
{
    if (server->guard != NULL) {
        int inner = -1;
        enum epd_status status = epd_guard_add(server->guard, fd, &inner, err);
        if (status != EPD_OK)
            return status;
        *fd = inner;
    }
    EPD_AUTO_CLOSE int given = fcntl(*fd, F_DUPFD_CLOEXEC, next_fd(server));
    if (given < 0)
        return epd_fail_errno(err, "dup of a connection");
    const int flags = fcntl(given, F_GETFL);
    if (flags < 0 || fcntl(given, F_SETFL, flags | O_NONBLOCK) != 0)
        return epd_fail_errno(err, "fcntl of a connection");
    *given_out = epd_steal_fd(&given);
    return EPD_OK;
}

enum epd_status epd_rpc_server_add_connection(struct epd_rpc_server *server, int fd,
                                              const struct epd_peer *peer, struct epd_error *err)
{
    EPD_AUTO_CLOSE int end = fd;
    EPD_AUTO_CLOSE int given = -1;
    if (server->draining)
        return epd_fail(err, EPD_EDRAINING, "the daemon is draining");
    struct epd_rpc_uid *uid = epd_rpc_uid_get(server, peer->uid);
    if (uid == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a user");
    if (uid->conns >= EPD_RPC_CONNS_PER_UID)
        return epd_fail(err, EPD_ELIMIT, "user %u has %u connections already", (unsigned)uid->uid,
                        uid->conns);
    enum epd_status status = open_ends(server, &end, &given, err);
    if (status != EPD_OK)
        return status;
    struct epd_rpc_conn *conn = calloc(1, sizeof(*conn));
    if (conn == NULL)
        return epd_fail(err, EPD_ENOMEM, "no memory for a connection");
    *conn = (struct epd_rpc_conn){.server = server,
                                  .id = ++server->next_conn,
                                  .grpc_fd = given,
                                  .peer = *peer,
                                  .uid = uid,
                                  .fd = epd_steal_fd(&end)};
    status = watch(conn, err);
    if (status != EPD_OK)
        return status;
    grpc_server_credentials *creds = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(server->server, epd_steal_fd(&given), creds);
    grpc_server_credentials_release(creds);
    return EPD_OK;
}

bool epd_rpc_conn_identify(struct epd_rpc_call *call)
{
    int fd = -1;
    char *peer = grpc_call_get_peer(call->call);
    const bool is_fd = peer != NULL && sscanf(peer, "fd:%d", &fd) == 1;
    gpr_free(peer);
    if (!is_fd)
        return false;
    for (const struct epd_rpc_conn *c = *bucket(call->server, fd); c != NULL; c = c->link) {
        if (c->grpc_fd == fd) {
            call->peer = c->peer;
            call->conn_id = c->id;
            return true;
        }
    }
    return false;
}

void epd_rpc_conn_shutdown(struct epd_rpc_server *server, uint64_t id)
{
    for (unsigned i = 0; i < EPD_RPC_CONN_BUCKETS; i++)
        for (struct epd_rpc_conn *c = server->conns[i]; c != NULL; c = c->link)
            if (c->id == id)
                (void)shutdown(c->fd, SHUT_RDWR); /* gone already is fine */
}

void epd_rpc_conn_close_all(struct epd_rpc_server *server)
{
    for (unsigned i = 0; i < EPD_RPC_CONN_BUCKETS; i++)
        while (server->conns[i] != NULL)
            conn_close(server->conns[i]);
}

unsigned epd_rpc_server_connections(const struct epd_rpc_server *server)
{
    return server->n_conns;
}

struct epd_rpc_uid *epd_rpc_uid_get(struct epd_rpc_server *server, uid_t uid)
{
    struct epd_rpc_uid *free_slot = NULL;
    for (struct epd_rpc_uid *u = server->uids; u != NULL; u = u->link) {
        if (u->uid == uid)
            return u;
        if (u->calls == 0 && u->conns == 0)
            free_slot = u;
    }
    if (free_slot == NULL) {
        free_slot = calloc(1, sizeof(*free_slot));
        if (free_slot == NULL)
            return NULL;
        free_slot->link = server->uids;
        server->uids = free_slot;
    }
    free_slot->uid = uid;
    return free_slot;
}
