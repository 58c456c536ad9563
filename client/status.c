/* Names and texts of the status codes, from the one table in proto/errors.h. */
#include "client/epd.h"

#include "proto/version.h"

struct row {
    enum epd_status status;
    enum epd_scope scope;
    const char *name;
    const char *text;
};

static const struct row rows[] = {
#define ROW(name, value, text, grpc, scope) {EPD_##name, EPD_SCOPE_##scope, #name, text},
    EPD_STATUS_MAP(ROW)
#undef ROW
};

static const struct row *find(enum epd_status status)
{
    static const struct row unknown = {EPD_EINTERNAL, EPD_SCOPE_REQUEST, "EUNKNOWN",
                                       "unknown status"};
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].status == status)
            return &rows[i];
    }
    return &unknown;
}

const char *epd_version(void)
{
    return EPD_VERSION;
}

const char *epd_status_string(enum epd_status status)
{
    return find(status)->name;
}

const char *epd_status_describe(enum epd_status status)
{
    return find(status)->text;
}

enum epd_scope epd_status_scope_of(enum epd_status status)
{
    return find(status)->scope;
}
