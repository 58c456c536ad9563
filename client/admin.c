#include "client/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/attach.h"
#include "client/call.h"
#include "client/fail.h"
#include "client/fork.h"

#define DEFAULT_TIMEOUT_NS 5000000000ll
#define PATH_MAX_BYTES 256

struct epd_admin {
    struct epdc_owner owner;
    char *socket;                    /* owned */
    struct epdc_transport transport; /* owned */
};

enum epd_status epd_admin_open(const char *socket, struct epd_admin **out, struct epd_error *err)
{
    if (!out)
        return epdc_fail(err, EPD_EINVAL, "out is NULL");
    struct epd_admin *admin = calloc(1, sizeof(*admin));
    if (!admin)
        return epdc_fail(err, EPD_ENOMEM, "no memory for a connection");
    epdc_owner_init(&admin->owner);
    enum epd_status status = epdc_socket_path(socket, &admin->socket, err);
    if (status == EPD_OK)
        status = epdc_transport_open(&admin->transport, admin->socket, DEFAULT_TIMEOUT_NS, err);
    if (status != EPD_OK) {
        epd_admin_close(admin);
        return status;
    }
    *out = admin;
    return EPD_OK;
}

void epd_admin_close(struct epd_admin *admin)
{
    if (!admin)
        return;
    if (!epdc_owner_forked(&admin->owner))
        epdc_transport_close(&admin->transport);
    free(admin->socket);
    free(admin);
}

const char *epd_admin_socket(const struct epd_admin *admin)
{
    return admin->socket;
}

enum epd_status epd_admin_call(struct epd_admin *admin, const char *method, const uint8_t *req,
                               size_t req_len, int64_t timeout_ns, uint8_t **resp_out,
                               size_t *resp_len_out, struct epd_error *err)
{
    if (!admin || !method || !resp_out || !resp_len_out || (!req && req_len))
        return epdc_fail(err, EPD_EINVAL, "an argument is NULL");
    if (epdc_owner_forked(&admin->owner))
        return epdc_fail(err, EPD_EFORKED,
                         "connection belongs to process %d, this is a forked "
                         "child",
                         (int)admin->owner.pid);

    char path[PATH_MAX_BYTES];
    int n =
        snprintf(path, sizeof(path), "%s%s", method[0] == '/' ? "" : EPDC_CONTROL_PREFIX, method);
    if (n < 0 || (size_t)n >= sizeof(path))
        return epdc_fail(err, EPD_EINVAL, "method is longer than %zu bytes", sizeof(path) - 1);

    struct epdc_transport transport = admin->transport;
    if (timeout_ns > 0)
        transport.timeout_ns = timeout_ns;
    const struct epdc_bytes request = {.data = (uint8_t *)(uintptr_t)req, .len = req_len};
    struct epdc_bytes reply = {NULL, 0};
    enum epd_status status = epdc_call_bytes(&transport, path, request, &reply, err);
    if (status == EPD_EUNREACHABLE)
        return epdc_explain_unreachable(admin->socket, err);
    if (status != EPD_OK)
        return status;
    *resp_out = reply.data;
    *resp_len_out = reply.len;
    return EPD_OK;
}
