/* Shared by server.c, call.c, stream.c and conn.c; everything belongs to the loop's thread but what
 * is guarded by `mutex`. */
#ifndef EPD_RPC_SERVER_INTERNAL_H
#define EPD_RPC_SERVER_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>

#include "daemon/rpc/server.h"

#define EPD_RPC_CONN_BUCKETS 256u

/* One operation in gRPC's hands. The queue's thread stores `ok` and links the tag; the loop runs
 * fn. */
struct epd_rpc_tag {
    void (*fn)(void *obj, bool ok);
    void *obj;
    bool ok;
    struct epd_rpc_tag *next;
};

struct epd_rpc_conn {
    struct epd_rpc_conn *link; /* of its bucket */
    struct epd_rpc_server *server;
    uint64_t id;
    int fd;      /* our copy, for identity and shutdown; owned */
    int grpc_fd; /* number that gRPC knows it by */
    struct epd_peer peer;
    struct epd_rpc_uid *uid;
    uv_poll_t poll; /* tells when the client is gone */
};

struct epd_rpc_uid {
    struct epd_rpc_uid *link;
    uid_t uid;
    unsigned calls, conns;
};

struct epd_rpc_registered {
    const struct epd_rpc_method *method;
    void *handle; /* gRPC's */
};

struct epd_rpc_server {
    uv_loop_t *loop;
    struct epd_rpc_options options;
    grpc_server *server;
    grpc_completion_queue *cq;
    pthread_t thread;
    bool started, draining, stopped;
    struct epd_rpc_registered *registered;            /* owned, n_methods */
    struct epd_rpc_call *calls;                       /* arrived and not freed */
    struct epd_rpc_conn *conns[EPD_RPC_CONN_BUCKETS]; /* by grpc_fd */
    struct epd_rpc_uid *uids;
    struct epd_guard *guard; /* NULL: off */
    unsigned n_conns;
    uint64_t next_conn;
    int next_fd;
    uv_async_t async;
    uv_timer_t timer;       /* once a second: stalled readers */
    uv_timer_t grace_timer; /* drain */
    unsigned open_handles;
    struct epd_rpc_tag shutdown_tag;
    void (*done)(void *ctx);
    void *done_ctx;
    pthread_mutex_t mutex;
    struct epd_rpc_tag *head, *tail; /* guarded by mutex: operations that ended */
    bool thread_ended;               /* guarded by mutex */
};

struct epd_rpc_message {
    struct epd_rpc_message *next;
    grpc_byte_buffer *bytes; /* owned */
};

struct epd_rpc_call {
    struct epd_rpc_call *link;
    struct epd_rpc_server *server;
    const struct epd_rpc_registered *registered; /* NULL: the catch-all of unknown methods */
    unsigned refs;
    bool listed, answered, closed, sending, sent_metadata, finishing;
    grpc_call *call;
    grpc_call_details details; /* catch-all only */
    grpc_metadata_array metadata;
    gpr_timespec deadline;
    grpc_byte_buffer *payload;
    struct epd_peer peer;
    uint64_t conn_id;
    struct epd_rpc_uid *uid;
    void (*cancel_cb)(void *ctx);
    void *cancel_ctx;
    int cancelled;
    struct epd_rpc_tag request_tag, close_tag, send_tag;
    /* the status to send last */
    grpc_status_code code;
    grpc_slice status_text, error_bytes;
    uint64_t send_started_ms; /* while sending: a message or an answer */
    /* stream */
    struct epd_rpc_message *first, *last;
    unsigned queued;
};

/* call.c */
/* Ask gRPC for the next call of a method (registered NULL: of unknown ones). */
void epd_rpc_call_request(struct epd_rpc_server *server,
                          const struct epd_rpc_registered *registered);
/* stream.c */
void epd_rpc_stream_pump(struct epd_rpc_call *call);
void epd_rpc_stream_drop_queue(struct epd_rpc_call *call);
/* Build the status ops (trailer included) from code, status_text, error_bytes. */
grpc_op epd_rpc_status_op(struct epd_rpc_call *call, grpc_metadata *trailer);
void epd_rpc_call_set_status(struct epd_rpc_call *call, enum epd_status status,
                             const char *message);
/* Hand a batch to gRPC; tag may be used once it has come back. */
void epd_rpc_start_batch(struct epd_rpc_call *call, const grpc_op *ops, size_t n,
                         struct epd_rpc_tag *tag);
/* The same for what the client has to take: one at a time, and watched for a reader that stalls. fn
 * clears `sending`. */
void epd_rpc_start_send(struct epd_rpc_call *call, const grpc_op *ops, size_t n,
                        void (*fn)(void *obj, bool ok));
/* conn.c */
/* Fill the call's peer from gRPC's peer string. False: an unknown connection. */
bool epd_rpc_conn_identify(struct epd_rpc_call *call);
/* Break the connection of this id, if it still is there. */
void epd_rpc_conn_shutdown(struct epd_rpc_server *server, uint64_t id);
void epd_rpc_conn_close_all(struct epd_rpc_server *server);
/* The row of a user; valid while its counts are not 0. NULL: out of memory. */
struct epd_rpc_uid *epd_rpc_uid_get(struct epd_rpc_server *server, uid_t uid);
/* server.c */
void epd_rpc_handle_closed(struct epd_rpc_server *server);

/* gRPC's queue is invisible to the thread sanitizer: tell it that a tag changes hands. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define EPD_TSAN_RELEASE(tag) __tsan_release(tag)
#define EPD_TSAN_ACQUIRE(tag) __tsan_acquire(tag)
#else
#define EPD_TSAN_RELEASE(tag) ((void)0)
#define EPD_TSAN_ACQUIRE(tag) ((void)0)
#endif

#endif
