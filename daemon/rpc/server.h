/* gRPC server over a libuv loop, without knowledge of any message: methods get bytes and answer
 * bytes. All callbacks run on the loop's thread; a completion-queue thread only posts to it. Only
 * unix connections that the caller accepted and identified are served (add_connection), plus, when
 * asked, a TCP port for methods that are public. Limits: 1 MiB a message, 64 KiB metadata, 512
 * streams a connection, 256 calls and 1024 connections at once for one uid, 64 MiB of gRPC buffers.
 * A connection whose reader stalls for 10 s while an answer or message waits is cut off. */
#ifndef EPD_RPC_SERVER_H
#define EPD_RPC_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/error.h"
#include "daemon/ipc/peer.h"

#define EPD_RPC_MESSAGE_MAX (1024u * 1024u)
#define EPD_RPC_CALLS_PER_UID 256u
#define EPD_RPC_CONNS_PER_UID 1024u
#define EPD_RPC_QUEUE_MAX 256u  /* messages queued on one stream */
#define EPD_RPC_STALL_MS 10000u /* a reader that takes nothing for so long is cut off */

struct epd_rpc_server;
struct epd_rpc_call; /* reference counted; a handler that answers later takes a reference */

enum epd_rpc_kind { EPD_RPC_UNARY, EPD_RPC_STREAM /* server streaming */ };

struct epd_rpc_method {
    const char *path; /* "/epd.v1.Control/Attach"; static */
    enum epd_rpc_kind kind;
    bool is_public; /* may be called without identity (TCP) */
    /* msg is borrowed for the call of the handler. A unary handler answers (reply or fail) before
     * it returns, or takes a reference and answers later; a stream handler likewise ends with
     * finish. */
    void (*handle)(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx);
    void *ctx;
};

struct epd_rpc_options {
    const struct epd_rpc_method *methods; /* borrowed, must outlive the server */
    unsigned n_methods;
    bool frame_guard;        /* count HTTP/2 frames of every connection (guard.h) */
    uint64_t idle_ms;        /* close a connection without calls after this time */
    const char *tcp_address; /* "127.0.0.1:9000", or NULL */
};

enum epd_status epd_rpc_server_create(uv_loop_t *loop, const struct epd_rpc_options *options,
                                      struct epd_rpc_server **out, struct epd_error *err);
/* Serve an accepted unix socket. fd is taken over, also on failure. EPD_ELIMIT: the user has too
 * many connections, or descriptors are short; EPD_EDRAINING. */
enum epd_status epd_rpc_server_add_connection(struct epd_rpc_server *server, int fd,
                                              const struct epd_peer *peer, struct epd_error *err);
unsigned epd_rpc_server_connections(const struct epd_rpc_server *server);
/* No new calls; calls in flight get grace_ms, streams are finished UNAVAILABLE at once. done runs
 * when nothing is left; then destroy. */
void epd_rpc_server_drain(struct epd_rpc_server *server, uint64_t grace_ms, void (*done)(void *ctx),
                          void *ctx);
/* After done. Frees in the loop: run it until it has no more to do. NULL is fine. */
void epd_rpc_server_destroy(struct epd_rpc_server *server);

/* uid (uid_t)-1 for TCP. */
const struct epd_peer *epd_rpc_call_peer(const struct epd_rpc_call *call);
/* CLOCK_MONOTONIC ns; UINT64_MAX: none. */
uint64_t epd_rpc_call_deadline_ns(const struct epd_rpc_call *call);
void epd_rpc_call_ref(struct epd_rpc_call *call);
void epd_rpc_call_unref(struct epd_rpc_call *call);
/* Called once when the client cancels, its deadline passes or it hangs up, unless the call was
 * answered before. NULL clears. */
void epd_rpc_call_on_cancel(struct epd_rpc_call *call, void (*cb)(void *ctx), void *ctx);
/* Unary: one of these ends the call; a second answer is ignored. The bytes are copied. */
void epd_rpc_call_reply(struct epd_rpc_call *call, const uint8_t *msg, size_t len);
/* gRPC status from epd_status_grpc, trailer "epd-error-bin" = packed epd.v1.Error. */
void epd_rpc_call_fail(struct epd_rpc_call *call, enum epd_status status, const char *message);
/* Stream: queue one message (copied). EPD_ELIMIT: the reader is too slow; it is being cut off. */
enum epd_status epd_rpc_call_send(struct epd_rpc_call *call, const uint8_t *msg, size_t len);
void epd_rpc_call_finish(struct epd_rpc_call *call, enum epd_status status, const char *message);

#endif
