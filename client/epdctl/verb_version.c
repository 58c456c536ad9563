#include "client/epdctl/ctl.h"

#include <stdio.h>

#include "proto/control.pb-c.h"
#include "proto/version.h"

static int run(struct ctl *ctl)
{
    int code = ctl_no_args(ctl);
    if (code != CTL_OK)
        return code;
    const Epd__V1__VersionRequest request = EPD__V1__VERSION_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct epd_error err = {.status = EPD_OK};
    const enum epd_status status =
        ctl_call(ctl, "GetVersion", &request.base, &epd__v1__version_reply__descriptor, &m, &err);
    const Epd__V1__VersionReply *reply = (const void *)m;
    const bool mismatch =
        reply != NULL && (reply->protocol != EPD_PROTOCOL_VERSION || reply->abi != EPD_ABI_VERSION);
    if (ctl->json) {
        json_t *root =
            json_pack("{s:{s:s, s:i, s:i}}", "client", "version", EPD_VERSION, "protocol",
                      (int)EPD_PROTOCOL_VERSION, "abi", (int)EPD_ABI_VERSION);
        if (reply != NULL)
            (void)json_object_set_new(root, "daemon",
                                      json_pack("{s:s, s:i, s:i, s:s, s:i}", "version",
                                                reply->version, "protocol", (int)reply->protocol,
                                                "abi", (int)reply->abi, "backend", reply->backend,
                                                "pid", (int)reply->pid));
        else
            (void)json_object_set_new(root, "error",
                                      json_pack("{s:s, s:s}", "status", epd_status_string(status),
                                                "message", err.message));
        ctl_json(ctl, root);
    } else {
        (void)printf("client %s protocol %u abi %u\n", EPD_VERSION, EPD_PROTOCOL_VERSION,
                     EPD_ABI_VERSION);
        if (reply != NULL)
            (void)printf("daemon %s protocol %u abi %u backend %s pid %u\n", reply->version,
                         reply->protocol, reply->abi, reply->backend, reply->pid);
    }
    if (status != EPD_OK)
        (void)fprintf(stderr, "epdctl version: %s\n", err.message);
    if (mismatch)
        (void)fprintf(stderr, "epdctl version: client and daemon do not fit: install the same "
                              "release of both\n");
    if (m != NULL)
        protobuf_c_message_free_unpacked(m, NULL);
    return mismatch ? CTL_VERSION : ctl_exit_of(status);
}

const struct ctl_verb ctl_verb_version = {
    .name = "version",
    .args = "",
    .summary = "Versions of client and daemon",
    .run = run,
};
