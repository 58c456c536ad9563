#include "client/rpc/rpc_internal.h"

#include <grpc/slice.h>
#include <stdio.h>
#include <string.h>

#define ERROR_KEY "epd-error-bin"

/* epd.v1.Error {sint32 status = 1; string message = 2}: two fields, read by hand, so that the
 * library needs no protobuf of its own. Anything else in it is skipped or ends the reading. */
static int read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            return 1;
    }
    return 0;
}

static int read_error(const uint8_t *at, size_t len, char *errbuf, size_t errlen)
{
    const uint8_t *end = at + len;
    int status = EPD_EINTERNAL;
    uint64_t key, value;
    while (at < end && read_varint(&at, end, &key) && read_varint(&at, end, &value)) {
        if (key == 1u << 3) {
            status = (int)(int32_t)((uint32_t)(value >> 1) ^ (0u - (uint32_t)(value & 1)));
        } else if (key == (2u << 3 | 2u)) {
            if (value > (uint64_t)(end - at))
                break;
            (void)snprintf(errbuf, errlen, "%.*s", (int)value, (const char *)at);
            at += value;
        } else
            break;
    }
    return status < 0 ? status : EPD_EINTERNAL;
}

static int map_code(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return EPD_OK;
    case GRPC_STATUS_CANCELLED:
        return EPD_ECANCELED;
    case GRPC_STATUS_INVALID_ARGUMENT:
        return EPD_EINVAL;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return EPD_ETIMEDOUT;
    case GRPC_STATUS_NOT_FOUND:
        return EPD_ENOENT;
    case GRPC_STATUS_PERMISSION_DENIED:
        return EPD_EPERM;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return EPD_ELIMIT;
    case GRPC_STATUS_UNIMPLEMENTED:
        return EPD_EUNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return EPD_EUNREACHABLE;
    default:
        return EPD_EINTERNAL;
    }
}

int epd_rpc_status(const struct epd_rpc_outcome *o, char *errbuf, size_t errlen)
{
    if (o->code == GRPC_STATUS_OK)
        return EPD_OK;
    (void)snprintf(errbuf, errlen, "%.*s", (int)GRPC_SLICE_LENGTH(o->details),
                   (const char *)GRPC_SLICE_START_PTR(o->details));
    for (size_t i = 0; i < o->trailing.count; i++) {
        const grpc_metadata *m = &o->trailing.metadata[i];
        if (grpc_slice_str_cmp(m->key, ERROR_KEY) == 0)
            return read_error(GRPC_SLICE_START_PTR(m->value), GRPC_SLICE_LENGTH(m->value), errbuf,
                              errlen);
    }
    return map_code(o->code);
}
