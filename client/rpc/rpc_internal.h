/* Shared by the files of libepd-rpc.so; the only client code that knows gRPC. */
#ifndef EPD_CLIENT_RPC_INTERNAL_H
#define EPD_CLIENT_RPC_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rpc/table.h"
#include "proto/errors.h"

struct epd_rpc_conn {
    grpc_channel *channel;
};

/* Let gRPC see what became of its connections. */
void epd_rpc_look(grpc_completion_queue *cq);
gpr_timespec epd_rpc_deadline(int64_t timeout_ns);
grpc_byte_buffer *epd_rpc_bytes(const uint8_t *data, size_t len);
/* malloc'ed copy of a received buffer; NULL: out of memory. */
uint8_t *epd_rpc_copy(grpc_byte_buffer *buffer, size_t *len_out);

/* What a finished call says: OK, or a status of ours with its message in errbuf. */
struct epd_rpc_outcome {
    grpc_status_code code;
    grpc_slice details;
    grpc_metadata_array trailing;
};
int epd_rpc_status(const struct epd_rpc_outcome *outcome, char *errbuf, size_t errlen);

int epd_rpc_stream_open(struct epd_rpc_conn *conn, const char *method, const uint8_t *req,
                        size_t req_len, struct epd_rpc_stream **out, char *errbuf, size_t errlen);
int epd_rpc_stream_next(struct epd_rpc_stream *stream, int64_t timeout_ns, uint8_t **msg_out,
                        size_t *len_out, char *errbuf, size_t errlen);
void epd_rpc_stream_close(struct epd_rpc_stream *stream);

#endif
