#include "daemon/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void epd_error_set(struct epd_error *err, enum epd_status status, const char *fmt, ...)
{
    if (err == NULL)
        return;
    va_list args;
    err->status = status;
    va_start(args, fmt);
    (void)vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
}

enum epd_status epd_fail_errno(struct epd_error *err, const char *fmt, ...)
{
    const int saved = errno;
    enum epd_status status = saved == ENOMEM                      ? EPD_ENOMEM
                             : saved == EMFILE || saved == ENFILE ? EPD_ELIMIT
                                                                  : EPD_ESYS;
    if (err != NULL) {
        va_list args;
        err->status = status;
        va_start(args, fmt);
        int n = vsnprintf(err->message, sizeof(err->message), fmt, args);
        va_end(args);
        if (n >= 0 && (size_t)n < sizeof(err->message))
            (void)snprintf(err->message + n, sizeof(err->message) - (size_t)n, ": %s",
                           strerror(saved));
    }
    errno = saved;
    return status;
}

enum epd_status epd_fail_prefix(struct epd_error *err, const char *fmt, ...)
{
    if (err == NULL)
        return EPD_EINTERNAL;
    char old[sizeof(err->message)];
    memcpy(old, err->message, sizeof(old));
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof(err->message))
        (void)snprintf(err->message + n, sizeof(err->message) - (size_t)n, ": %.*s",
                       (int)sizeof(old) - 1, old);
    return err->status;
}

struct row {
    int value;
    const char *name, *text;
    int grpc;
    enum epd_scope scope;
};
static const struct row g_rows[] = {
#define EPD_ROW(name, value, text, grpc, scope) {value, #name, text, grpc, EPD_SCOPE_##scope},
    EPD_STATUS_MAP(EPD_ROW)
#undef EPD_ROW
};

static const struct row *find(enum epd_status status)
{
    static const struct row unknown = {0, "UNKNOWN", "unknown status", 2, EPD_SCOPE_REQUEST};
    for (size_t i = 0; i < sizeof(g_rows) / sizeof(g_rows[0]); i++)
        if (g_rows[i].value == (int)status)
            return &g_rows[i];
    return &unknown;
}

const char *epd_status_name(enum epd_status status)
{
    return find(status)->name;
}
const char *epd_status_text(enum epd_status status)
{
    return find(status)->text;
}
int epd_status_grpc(enum epd_status status)
{
    return find(status)->grpc;
}
enum epd_scope epd_status_scope(enum epd_status status)
{
    return find(status)->scope;
}
