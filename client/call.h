/* One unary control call: pack a protobuf-c message, send the bytes through the transport table of
 * libepd-rpc.so, unpack the reply. Thread rule: a transport may be used from several threads;
 * opening and closing it belong to one. */
#ifndef EPD_CLIENT_CALL_H
#define EPD_CLIENT_CALL_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/errors.h"

struct epd_rpc_table; /* client/rpc/table.h */
struct epd_rpc_conn;  /* client/rpc/table.h */

struct epdc_transport {
    const struct epd_rpc_table *rpc; /* static in the library loaded */
    struct epd_rpc_conn *conn;       /* owned */
    int64_t timeout_ns;              /* of every call; > 0 */
};

struct epdc_method {
    const char *path; /* "/epd.v1.Control/Attach" */
    const ProtobufCMessageDescriptor *reply;
};
#define EPDC_CONTROL_PREFIX "/epd.v1.Control/"

/* Load libepd-rpc.so and make a (lazy) channel to the unix socket. Errors: EUNSUPPORTED (library
 * missing; the message names the paths tried), EVERSION (library of another build), ENOMEM. */
enum epd_status epdc_transport_open(struct epdc_transport *transport, const char *socket,
                                    int64_t timeout_ns, struct epd_error *err);
/* Idempotent. */
void epdc_transport_close(struct epdc_transport *transport);

/* A reply; `data` is malloc'ed, the caller frees it. */
struct epdc_bytes {
    uint8_t *data;
    size_t len;
};
/* Bytes in, bytes out. Errors: those of the daemon, ETIMEDOUT, EUNREACHABLE. */
enum epd_status epdc_call_bytes(const struct epdc_transport *transport, const char *path,
                                struct epdc_bytes request, struct epdc_bytes *reply_out,
                                struct epd_error *err);
/* Messages in, messages out. reply_out may be NULL (the reply is checked and dropped); otherwise
 * the caller frees *reply_out with epdc_reply_free. Errors: as above, EINTERNAL (a reply that does
 * not parse or needs too much memory), ENOMEM. */
enum epd_status epdc_call(const struct epdc_transport *transport, const struct epdc_method *method,
                          const ProtobufCMessage *request, ProtobufCMessage **reply_out,
                          struct epd_error *err);
/* NULL is fine. */
void epdc_reply_free(ProtobufCMessage *reply);

#endif
