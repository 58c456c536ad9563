/* Status codes shared by the daemon, the engines, the client library and the wire.
 *
 * One X-macro row per code: name, value, text for people, gRPC status code (grpc/status.h
 * numbering), and scope: the largest thing the error kills, so the caller knows what to rebuild.
 *   request  the call or op alone; correct it and go on
 *   epoch    the group's epoch; go on with the next one
 *   group    the group's generation; call epd_rearm() and go on
 *   session  the session; open a new one
 *   device   the device; its groups wait until the engine is back
 *   daemon   the daemon; reconnect
 * Values are stable: they travel in completions and in gRPC trailers. Never renumber.
 */
#ifndef EPD_PROTO_ERRORS_H
#define EPD_PROTO_ERRORS_H

enum epd_scope {
    EPD_SCOPE_NONE = 0,
    EPD_SCOPE_REQUEST,
    EPD_SCOPE_EPOCH,
    EPD_SCOPE_GROUP,
    EPD_SCOPE_SESSION,
    EPD_SCOPE_DEVICE,
    EPD_SCOPE_DAEMON,
};

/* clang-format off */
#define EPD_STATUS_MAP(X)                                                                   \
    X(OK,                 0, "ok",                                      0, NONE)            \
    X(EINVAL,            -1, "invalid argument",                        3, REQUEST)         \
    X(ENOENT,            -2, "no such object",                          5, REQUEST)         \
    X(EEXIST,            -3, "already exists",                          6, REQUEST)         \
    X(EPERM,             -4, "permission denied",                       7, REQUEST)         \
    X(ESTALE,            -5, "stale id",                                5, REQUEST)         \
    X(EBUSY,             -6, "busy",                                    9, REQUEST)         \
    X(ELIMIT,            -7, "limit reached",                           8, REQUEST)         \
    X(ENOMEM,            -8, "out of memory",                           8, REQUEST)         \
    X(ETIMEDOUT,         -9, "deadline exceeded",                       4, REQUEST)         \
    X(ECANCELED,        -10, "cancelled",                               1, REQUEST)         \
    X(EUNSUPPORTED,     -11, "not supported",                          12, REQUEST)         \
    X(EVERSION,         -12, "version mismatch",                        9, DAEMON)          \
    X(ESYS,             -13, "system call failed",                     13, REQUEST)         \
    X(EINTERNAL,        -14, "internal error",                         13, REQUEST)         \
    X(EFORKED,          -15, "handle used in a forked child",           9, SESSION)         \
    X(EAGAIN,           -16, "not ready",                              14, REQUEST)         \
    X(EEPOCH,           -20, "epoch failed",                           10, EPOCH)           \
    X(ERANKLATE,        -21, "epoch failed: rank late",                10, EPOCH)           \
    X(EMISMATCH,        -22, "epoch failed: ranks disagree",           10, EPOCH)           \
    X(EORDER,           -23, "epoch out of order",                      9, REQUEST)         \
    X(EUNRELEASED,      -24, "too many unreleased dispatches",          9, REQUEST)         \
    X(EROUTING,         -25, "invalid expert id",                       3, REQUEST)         \
    X(EGENERATION,      -30, "generation changed",                     10, GROUP)           \
    X(ERANKLOST,        -31, "generation changed: rank lost",          10, GROUP)           \
    X(ERANKJOINED,      -32, "generation changed: rank replaced",      10, GROUP)           \
    X(EENGINERESTARTED, -33, "generation changed: engine restarted",   10, GROUP)           \
    X(ERESET,           -34, "generation changed: reset",              10, GROUP)           \
    X(ESESSIONLOST,     -40, "session lost",                           14, SESSION)         \
    X(EDEVICE,          -41, "device unavailable",                     14, DEVICE)          \
    X(EDAEMONLOST,      -42, "daemon lost",                            14, DAEMON)          \
    X(EUNREACHABLE,     -43, "daemon unreachable",                     14, DAEMON)          \
    X(EDRAINING,        -44, "daemon is draining",                     14, DAEMON)
/* clang-format on */

enum epd_status {
#define EPD_STATUS_ENUM(name, value, text, grpc, scope) EPD_##name = (value),
    EPD_STATUS_MAP(EPD_STATUS_ENUM)
#undef EPD_STATUS_ENUM
};

/* An error as a value: what happened (status) and a message that names the field, the value and
 * the remedy. Written only on failure. The struct belongs to the caller. */
struct epd_error {
    enum epd_status status;
    char message[256];
};

#endif
