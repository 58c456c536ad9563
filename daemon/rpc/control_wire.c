#include "daemon/rpc/control_wire.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/rpc/pb_alloc.h"

#define DEPTH_MAX 4u /* our messages nest less */

/* ---- strings ---- */

struct cursor {
    const uint8_t *at, *end;
};

static bool take_varint(struct cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        const uint8_t byte = *c->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct cursor *c, uint64_t n)
{
    if (n > (uint64_t)(c->end - c->at))
        return false;
    c->at += n;
    return true;
}

/* Bytes of a UTF-8 sequence by its first byte; 0: not a first byte. */
static unsigned sequence_length(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

static bool text_valid(const uint8_t *s, uint64_t len)
{
    for (uint64_t i = 0; i < len;) {
        const unsigned n = sequence_length(s[i]);
        if (n == 0 || n > len - i || s[i] == 0)
            return false;
        for (unsigned k = 1; k < n; k++)
            if ((s[i + k] & 0xc0) != 0x80)
                return false;
        /* Overlong forms, surrogates, and what is above U+10FFFF. */
        if ((s[i] == 0xe0 && s[i + 1] < 0xa0) || (s[i] == 0xed && s[i + 1] > 0x9f) ||
            (s[i] == 0xf0 && s[i + 1] < 0x90) || (s[i] == 0xf4 && s[i + 1] > 0x8f))
            return false;
        i += n;
    }
    return true;
}

static bool strings_valid(const ProtobufCMessageDescriptor *type, struct cursor c, unsigned depth,
                          const char **field_out);

/* One length-delimited field. */
static bool field_valid(const ProtobufCFieldDescriptor *field, struct cursor value, unsigned depth,
                        const char **field_out)
{
    if (field == NULL)
        return true;
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        *field_out = field->name;
        return text_valid(value.at, (uint64_t)(value.end - value.at));
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && depth < DEPTH_MAX)
        return strings_valid(field->descriptor, value, depth + 1, field_out);
    return true;
}

static bool strings_valid(const ProtobufCMessageDescriptor *type, struct cursor c, unsigned depth,
                          const char **field_out)
{
    uint64_t tag, n;
    while (c.at < c.end && take_varint(&c, &tag)) {
        bool ok;
        switch (tag & 7u) {
        case 0:
            ok = take_varint(&c, &n);
            break;
        case 1:
            ok = skip(&c, 8);
            break;
        case 5:
            ok = skip(&c, 4);
            break;
        case 2: {
            ok = take_varint(&c, &n);
            const struct cursor value = {c.at,
                                         c.at + (ok && n <= (uint64_t)(c.end - c.at) ? n : 0)};
            ok = ok && skip(&c, n);
            if (ok &&
                !field_valid(protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3)),
                             value, depth, field_out))
                return false;
            break;
        }
        default:
            ok = false;
        }
        if (!ok)
            return true; /* not a message: the parser says so */
    }
    return true;
}

bool epd_wire_strings_valid(const ProtobufCMessageDescriptor *type, const uint8_t *msg, size_t len,
                            const char **field_out)
{
    return strings_valid(type, (struct cursor){msg, msg + len}, 0, field_out);
}

/* ---- parsing ---- */

void *epd_wire_parse(struct epd_rpc_call *call, const ProtobufCMessageDescriptor *type,
                     const uint8_t *msg, size_t len)
{
    struct epd_pb_arena arena;
    struct epd_error err;
    const char *field = "";
    if (!epd_wire_strings_valid(type, msg, len, &field)) {
        (void)epd_fail(&err, EPD_EINVAL, "%s: not valid UTF-8, or with a NUL in it", field);
        epd_wire_fail(call, &err);
        return NULL;
    }
    epd_pb_arena_init(&arena, EPD_PB_CAP);
    void *message = protobuf_c_message_unpack(type, &arena.allocator, len, msg);
    if (message != NULL)
        return message;
    (void)epd_fail(&err, EPD_EINVAL, "request is not a %s", type->short_name);
    epd_wire_fail(call, &err);
    return NULL;
}

void epd_wire_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL); /* the arena only counts */
}

/* ---- answers ---- */

void epd_wire_reply(struct epd_rpc_call *call, const ProtobufCMessage *reply)
{
    const size_t len = protobuf_c_message_get_packed_size(reply);
    uint8_t *bytes = malloc(len + 1);
    if (bytes == NULL) {
        epd_rpc_call_fail(call, EPD_ENOMEM, "no memory for the reply");
        return;
    }
    (void)protobuf_c_message_pack(reply, bytes); /* as long as it said */
    epd_rpc_call_reply(call, bytes, len);
    free(bytes);
}

void epd_wire_fail(struct epd_rpc_call *call, const struct epd_error *err)
{
    epd_rpc_call_fail(call, err->status, err->message);
}

/* ---- conversions ---- */

struct epd_session *epd_wire_session(struct epd_control *control, struct epd_rpc_call *call,
                                     const Epd__V1__Session *session)
{
    struct epd_session *found;
    struct epd_error err;
    const struct epd_session_proof proof = {
        .id = session != NULL ? session->id : 0,
        .key = session != NULL ? session->key.data : NULL,
        .key_len = session != NULL ? session->key.len : 0,
        .uid = epd_rpc_call_peer(call)->uid,
    };
    if (session == NULL)
        (void)epd_fail(&err, EPD_EINVAL, "session: missing");
    else if (epd_session_check(control->options.core, &proof, &found, &err) == EPD_OK)
        return found;
    epd_wire_fail(call, &err);
    return NULL;
}

void epd_wire_shape_in(const Epd__V1__Shape *from, struct epd_shape *to)
{
    *to = (struct epd_shape){0};
    if (from == NULL)
        return;
    *to = (struct epd_shape){
        .ranks = from->ranks,
        .experts = from->experts,
        .max_tokens = from->max_tokens,
        .topk = from->topk,
        .hidden = from->hidden,
        .dtype = from->dtype,
        .mode = from->mode,
        .layout = from->layout,
    };
}

void epd_wire_shape_out(const struct epd_shape *from, Epd__V1__Shape *to)
{
    epd__v1__shape__init(to);
    to->ranks = from->ranks;
    to->experts = from->experts;
    to->max_tokens = from->max_tokens;
    to->topk = from->topk;
    to->hidden = from->hidden;
    to->dtype = from->dtype;
    to->mode = from->mode;
    to->layout = from->layout;
}

void epd_wire_grants_out(const struct epd_grant_info *from, unsigned n, Epd__V1__FdGrant *to,
                         Epd__V1__FdGrant **refs)
{
    for (unsigned i = 0; i < n; i++) {
        epd__v1__fd_grant__init(&to[i]);
        /* Only read while packing. */
        to[i].token = (ProtobufCBinaryData){EPD_TOKEN_BYTES, (uint8_t *)(uintptr_t)from[i].token};
        to[i].kind = (char *)(uintptr_t)from[i].kind;
        to[i].id = from[i].id;
        to[i].bytes = from[i].bytes;
        refs[i] = &to[i];
    }
}

/* ---- calls that are answered later ---- */

static void on_cancel(void *ctx)
{
    ((struct epd_pending *)ctx)->cancelled = true;
}

struct epd_pending *epd_pending_create(struct epd_control *control, struct epd_rpc_call *call)
{
    struct epd_pending *p = calloc(1, sizeof(*p));
    epd_assert(p != NULL);
    *p = (struct epd_pending){.control = control, .call = call};
    epd_rpc_call_ref(call);
    epd_rpc_call_on_cancel(call, on_cancel, p);
    return p;
}

void epd_pending_destroy(struct epd_pending *pending)
{
    epd_rpc_call_on_cancel(pending->call, NULL, NULL);
    epd_rpc_call_unref(pending->call);
    free(pending);
}

bool epd_pending_alive(void *pending)
{
    return !((struct epd_pending *)pending)->cancelled;
}

void epd_pending_reply(struct epd_pending *pending, const ProtobufCMessage *reply)
{
    epd_wire_reply(pending->call, reply);
    epd_pending_destroy(pending);
}

void epd_pending_fail(struct epd_pending *pending, const struct epd_error *err)
{
    epd_wire_fail(pending->call, err);
    epd_pending_destroy(pending);
}

void epd_pending_done(void *pending, const struct epd_error *err)
{
    const Epd__V1__Empty empty = EPD__V1__EMPTY__INIT;
    if (err != NULL)
        epd_pending_fail(pending, err);
    else
        epd_pending_reply(pending, &empty.base);
}
