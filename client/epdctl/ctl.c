#include "client/epdctl/ctl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/epdctl/fail.h"

int ctl_exit_of(enum epd_status status)
{
    switch (status) {
    case EPD_OK:
        return CTL_OK;
    case EPD_EINVAL: /* what the user asked for, refused here or by the daemon */
        return CTL_USAGE;
    case EPD_EUNREACHABLE:
    case EPD_EDAEMONLOST:
        return CTL_UNREACHABLE;
    case EPD_EPERM:
        return CTL_PERMISSION;
    case EPD_EVERSION:
        return CTL_VERSION;
    case EPD_ETIMEDOUT:
        return CTL_TIMEOUT;
    default:
        return CTL_FAILED;
    }
}

int ctl_report(const struct ctl *ctl, const struct epd_error *err)
{
    if (ctl->json)
        ctl_json(ctl, json_pack("{s:{s:s, s:s}}", "error", "status", epd_status_string(err->status),
                                "message", err->message));
    (void)fprintf(stderr, "epdctl %s: %s\n", ctl->verb, err->message);
    return ctl_exit_of(err->status);
}

int ctl_usage(const struct ctl *ctl, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (ctl->json)
        ctl_json(ctl, json_pack("{s:{s:s, s:s}}", "error", "status", "EINVAL", "message", text));
    (void)fprintf(stderr, "epdctl %s: %s\nTry: epdctl %s --help\n", ctl->verb, text, ctl->verb);
    return CTL_USAGE;
}

int ctl_no_args(const struct ctl *ctl)
{
    if (ctl->argc > 1)
        return ctl_usage(ctl, "unexpected argument \"%s\"", ctl->argv[1]);
    return CTL_OK;
}

enum epd_status ctl_call(struct ctl *ctl, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **reply_out,
                         struct epd_error *err)
{
    enum epd_status status = EPD_OK;
    if (ctl->admin == NULL)
        status = epd_admin_open(ctl->socket, &ctl->admin, err);
    if (status != EPD_OK)
        return status;
    const size_t len = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = malloc(len + 1), *reply = NULL;
    size_t reply_len = 0;
    if (bytes == NULL)
        return ctl_fail(err, EPD_ENOMEM, "no memory for a request of %zu bytes", len);
    (void)protobuf_c_message_pack(request, bytes);
    status =
        epd_admin_call(ctl->admin, method, bytes, len, ctl->timeout_ns, &reply, &reply_len, err);
    free(bytes);
    if (status != EPD_OK)
        return status;
    *reply_out = protobuf_c_message_unpack(descriptor, NULL, reply_len, reply);
    free(reply);
    return *reply_out != NULL ? EPD_OK
                              : ctl_fail(err, EPD_EVERSION,
                                         "the daemon's answer to %s does not parse: is it "
                                         "another version? (epdctl version)",
                                         method);
}

void ctl_json(const struct ctl *ctl, json_t *root)
{
    char schema[64];
    json_t *out = json_object();
    (void)snprintf(schema, sizeof(schema), "epd.%s.v1", ctl->verb);
    if (out == NULL || root == NULL ||
        json_object_set_new(out, "schema", json_string(schema)) != 0 ||
        json_object_update(out, root) != 0 || json_dumpf(out, stdout, JSON_INDENT(1)) != 0)
        (void)fprintf(stderr, "epdctl %s: cannot write JSON\n", ctl->verb);
    (void)putchar('\n');
    json_decref(out);
    json_decref(root);
}
