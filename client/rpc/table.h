/* The one thing that libepd-rpc.so exports: its control transport as a table of functions. Messages
 * are bytes; nothing of gRPC shows here. libepd opens the library at run time (rpc_load.c), so that
 * a process with a gRPC of its own keeps it. */
#ifndef EPD_CLIENT_RPC_TABLE_H
#define EPD_CLIENT_RPC_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define EPD_RPC_TABLE_ABI 1u
#define EPD_RPC_TABLE_SYMBOL "epd_rpc_table_v1"

struct epd_rpc_conn;   /* a channel to one daemon; used from any number of threads */
struct epd_rpc_stream; /* a server stream; one thread at a time */

struct epd_rpc_table {
    uint32_t abi; /* EPD_RPC_TABLE_ABI */
    uint32_t size;
    /* All `int` results are enum epd_status; on failure errbuf holds a message. */
    /* A lazy channel to the unix socket. EINVAL: the path is too long. */
    int (*open)(const char *socket_path, struct epd_rpc_conn **out, char *errbuf, size_t errlen);
    /* No call may be in progress. NULL is fine. */
    void (*close)(struct epd_rpc_conn *conn);
    /* Blocking call of "/pkg.Service/Method". *resp_out: free with `free_bytes`. timeout_ns > 0.
     * The daemon's own status when it sent one (trailer "epd-error-bin"); EUNREACHABLE when there
     * is no daemon or it went away before it answered (the call may have run: it is never made
     * twice), ETIMEDOUT, ... */
    int (*unary)(struct epd_rpc_conn *conn, const char *method, const uint8_t *req, size_t req_len,
                 int64_t timeout_ns, uint8_t **resp_out, size_t *resp_len_out, char *errbuf,
                 size_t errlen);
    int (*stream_open)(struct epd_rpc_conn *conn, const char *method, const uint8_t *req,
                       size_t req_len, struct epd_rpc_stream **out, char *errbuf, size_t errlen);
    /* Next message; ETIMEDOUT leaves the stream usable; any other failure is its end. */
    int (*stream_next)(struct epd_rpc_stream *stream, int64_t timeout_ns, uint8_t **msg_out,
                       size_t *len_out, char *errbuf, size_t errlen);
    void (*stream_close)(struct epd_rpc_stream *stream); /* cancels; NULL is fine */
    void (*free_bytes)(void *bytes);
};

/* Static, valid for the life of the process. Thread-safe. */
const struct epd_rpc_table *epd_rpc_table_v1(void);

#endif
