#include "client/call.h"

#include <stdlib.h>
#include <string.h>

#include "client/epd.h"
#include "client/fail.h"
#include "client/rpc/table.h"
#include "client/rpc_load.h"

#define REPLY_MEMORY_BYTES (4u << 20) /* of one unpacked reply: small fields unpack to 30 times */

/* ---- bytes ------------------------------------------------------------------------------ */

enum epd_status epdc_transport_open(struct epdc_transport *transport, const char *socket,
                                    int64_t timeout_ns, struct epd_error *err)
{
    char text[sizeof(err->message)] = "";
    const struct epd_rpc_table *rpc = NULL;
    struct epd_rpc_conn *conn = NULL;
    enum epd_status status = epdc_rpc_load(&rpc, err);
    if (status != EPD_OK)
        return status;
    status = (enum epd_status)rpc->open(socket, &conn, text, sizeof(text));
    if (status != EPD_OK)
        return epdc_fail(err, status, "%s", text);
    *transport = (struct epdc_transport){.rpc = rpc, .conn = conn, .timeout_ns = timeout_ns};
    return EPD_OK;
}

void epdc_transport_close(struct epdc_transport *transport)
{
    if (transport->conn)
        transport->rpc->close(transport->conn);
    transport->conn = NULL;
}

enum epd_status epdc_call_bytes(const struct epdc_transport *transport, const char *path,
                                struct epdc_bytes request, struct epdc_bytes *reply_out,
                                struct epd_error *err)
{
    char text[sizeof(err->message)] = "";
    uint8_t *data = NULL;
    size_t len = 0;
    enum epd_status status = (enum epd_status)transport->rpc->unary(
        transport->conn, path, request.data, request.len, transport->timeout_ns, &data, &len, text,
        sizeof(text));
    if (status != EPD_OK)
        return epdc_fail(err, status, "%s", text);

    /* Copied: with DEEPBIND the other library may have another malloc than this process. */
    uint8_t *copy = malloc(len ? len : 1);
    if (copy && len)
        memcpy(copy, data, len);
    transport->rpc->free_bytes(data);
    if (!copy)
        return epdc_fail(err, EPD_ENOMEM, "%s: no memory for a reply of %zu bytes", path, len);
    *reply_out = (struct epdc_bytes){.data = copy, .len = len};
    return EPD_OK;
}

/* ---- memory of unpacked replies --------------------------------------------------------- */

/* Zeroed, and no more than `left` bytes altogether. */
static void *reply_alloc(void *data, size_t size)
{
    size_t *left = data;
    if (size > *left)
        return NULL;
    *left -= size;
    return calloc(1, size ? size : 1);
}

static void reply_dealloc(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

void epdc_reply_free(ProtobufCMessage *reply)
{
    size_t none = 0;
    ProtobufCAllocator allocator = {reply_alloc, reply_dealloc, &none};
    if (reply)
        protobuf_c_message_free_unpacked(reply, &allocator);
}

static enum epd_status unpack(const struct epdc_method *method, struct epdc_bytes bytes,
                              ProtobufCMessage **reply_out, struct epd_error *err)
{
    size_t left = REPLY_MEMORY_BYTES;
    ProtobufCAllocator allocator = {reply_alloc, reply_dealloc, &left};
    ProtobufCMessage *reply =
        protobuf_c_message_unpack(method->reply, &allocator, bytes.len, bytes.data);
    if (!reply)
        return epdc_fail(err, EPD_EINTERNAL, "%s: reply of %zu bytes does not parse", method->path,
                         bytes.len);
    if (reply_out)
        *reply_out = reply;
    else
        epdc_reply_free(reply);
    return EPD_OK;
}

/* ---- messages --------------------------------------------------------------------------- */

enum epd_status epdc_call(const struct epdc_transport *transport, const struct epdc_method *method,
                          const ProtobufCMessage *request, ProtobufCMessage **reply_out,
                          struct epd_error *err)
{
    struct epdc_bytes packed = {.len = protobuf_c_message_get_packed_size(request)};
    struct epdc_bytes reply = {.data = NULL};
    packed.data = malloc(packed.len ? packed.len : 1);
    if (!packed.data)
        return epdc_fail(err, EPD_ENOMEM, "%s: no memory for a request of %zu bytes", method->path,
                         packed.len);
    (void)protobuf_c_message_pack(request, packed.data); /* returns the size again */
    enum epd_status status = epdc_call_bytes(transport, method->path, packed, &reply, err);
    explicit_bzero(packed.data, packed.len); /* session and group keys */
    free(packed.data);
    if (status != EPD_OK)
        return status;
    status = unpack(method, reply, reply_out, err);
    free(reply.data);
    return status;
}
