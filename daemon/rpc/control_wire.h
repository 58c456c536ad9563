/* What the handlers of epd.v1.Control share: unpacking untrusted bytes, answers, sessions, shapes.
 * Thread rule: the loop's thread. */
#ifndef EPD_RPC_CONTROL_WIRE_H
#define EPD_RPC_CONTROL_WIRE_H

#include "daemon/core/core.h"
#include "daemon/core/session.h"
#include "daemon/rpc/control.h"
#include "proto/control.pb-c.h"
#include "proto/layout.h"

struct epd_control_stream;
struct epd_control {
    struct epd_control_options options;
    struct epd_control_stream *streams; /* WatchEvents */
};

typedef void epd_control_handler(struct epd_rpc_call *call, const uint8_t *msg, size_t len,
                                 void *ctx);
epd_control_handler epd_control_get_version, epd_control_attach, epd_control_detach;
epd_control_handler epd_control_create_group, epd_control_open_group, epd_control_destroy_group;
epd_control_handler epd_control_reset_group, epd_control_plan_group;
epd_control_handler epd_control_acquire_lease, epd_control_release_lease, epd_control_rearm;
epd_control_handler epd_control_alloc_buffer, epd_control_import_buffer, epd_control_free_buffer;
epd_control_handler epd_control_bind_op, epd_control_unbind_op;
epd_control_handler epd_control_get_status, epd_control_list_groups, epd_control_list_sessions;
epd_control_handler epd_control_list_devices, epd_control_list_tables, epd_control_watch_events;

/* The request, or NULL when the call has been failed: bytes that do not parse, need too much
 * memory, or hold a string with a NUL or bad UTF-8. Free with epd_wire_free. */
void *epd_wire_parse(struct epd_rpc_call *call, const ProtobufCMessageDescriptor *type,
                     const uint8_t *msg, size_t len);
void epd_wire_free(void *message);
/* Are all strings of the message, at any depth, free of NUL and valid UTF-8? Bytes that are no such
 * message are left to the parser. On false *field_out is the field's name. */
bool epd_wire_strings_valid(const ProtobufCMessageDescriptor *type, const uint8_t *msg, size_t len,
                            const char **field_out);

void epd_wire_reply(struct epd_rpc_call *call, const ProtobufCMessage *reply);
void epd_wire_fail(struct epd_rpc_call *call, const struct epd_error *err);

/* The caller's session, or NULL when the call has been failed. */
struct epd_session *epd_wire_session(struct epd_control *control, struct epd_rpc_call *call,
                                     const Epd__V1__Session *session);
/* A missing shape is all 0 (and invalid). */
void epd_wire_shape_in(const Epd__V1__Shape *from, struct epd_shape *to);
void epd_wire_shape_out(const struct epd_shape *from, Epd__V1__Shape *to);
/* to[n] and refs[n] are the caller's; nothing is copied but pointers into `from`. */
void epd_wire_grants_out(const struct epd_grant_info *from, unsigned n, Epd__V1__FdGrant *to,
                         Epd__V1__FdGrant **refs);

/* A call that is answered later: holds a reference and learns of its cancellation. */
struct epd_pending {
    struct epd_control *control;
    struct epd_rpc_call *call;
    bool cancelled;
};
struct epd_pending *epd_pending_create(struct epd_control *control, struct epd_rpc_call *call);
void epd_pending_destroy(struct epd_pending *pending);
/* epd_alive_fn. */
bool epd_pending_alive(void *pending);
/* epd_done_fn: answers Empty or the error, and destroys. */
void epd_pending_done(void *pending, const struct epd_error *err);
/* Answers and destroys. */
void epd_pending_reply(struct epd_pending *pending, const ProtobufCMessage *reply);
void epd_pending_fail(struct epd_pending *pending, const struct epd_error *err);

#endif
