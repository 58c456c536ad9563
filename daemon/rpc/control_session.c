/* GetVersion, Attach, Detach. */
#include "daemon/core/session.h"

#include <stdio.h>
#include <unistd.h>

#include "daemon/rpc/control_wire.h"
#include "proto/version.h"

void epd_control_get_version(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__VersionReply reply = EPD__V1__VERSION_REPLY__INIT;
    char version[] = EPD_VERSION;
    (void)msg;
    (void)len;
    reply.version = version;
    reply.protocol = EPD_PROTOCOL_VERSION;
    reply.abi = EPD_ABI_VERSION;
    reply.backend = (char *)(uintptr_t)control->options.backend; /* only read */
    reply.pid = (uint32_t)getpid();
    epd_wire_reply(call, &reply.base);
}

static void on_attached(void *arg, const struct epd_attach_info *info, const struct epd_error *err)
{
    struct epd_pending *p = arg;
    Epd__V1__AttachReply reply = EPD__V1__ATTACH_REPLY__INIT;
    char version[] = EPD_VERSION;
    if (err != NULL) {
        epd_pending_fail(p, err);
        return;
    }
    /* Only read while packing. */
    reply.session = info->session;
    reply.session_key = (ProtobufCBinaryData){sizeof(info->key), (uint8_t *)(uintptr_t)info->key};
    reply.token = (ProtobufCBinaryData){sizeof(info->token), (uint8_t *)(uintptr_t)info->token};
    reply.fd_socket = (char *)(uintptr_t)info->fd_socket;
    reply.devices = info->devices;
    reply.version = version;
    reply.protocol = EPD_PROTOCOL_VERSION;
    reply.abi = EPD_ABI_VERSION;
    epd_pending_reply(p, &reply.base);
}

void epd_control_attach(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__AttachRequest *r =
        epd_wire_parse(call, &epd__v1__attach_request__descriptor, msg, len);
    struct epd_error err;
    if (r == NULL)
        return;
    if (r->protocol != EPD_PROTOCOL_VERSION || r->abi != EPD_ABI_VERSION) {
        (void)epd_fail(&err, EPD_EVERSION,
                       "client %.32s has protocol %u, ABI %u; epd " EPD_VERSION " has protocol %u, "
                       "ABI %u: install one release on both sides",
                       r->version, r->protocol, r->abi, EPD_PROTOCOL_VERSION, EPD_ABI_VERSION);
        epd_wire_fail(call, &err);
    } else {
        const struct epd_attach_request request = {
            .peer = *epd_rpc_call_peer(call), .name = r->name, .version = r->version};
        epd_session_attach(control->options.core, &request, on_attached,
                           epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

void epd_control_detach(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    const Epd__V1__Empty empty = EPD__V1__EMPTY__INIT;
    Epd__V1__DetachRequest *r =
        epd_wire_parse(call, &epd__v1__detach_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        epd_session_detach(session);
        epd_wire_reply(call, &empty.base);
    }
    epd_wire_free(r);
}
