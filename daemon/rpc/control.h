/* Service epd.v1.Control on top of server.h: protobuf messages to calls of daemon/core and back.
 * Everything runs on the loop's thread. */
#ifndef EPD_RPC_CONTROL_H
#define EPD_RPC_CONTROL_H

#include "daemon/core/core.h"
#include "daemon/rpc/server.h"

struct epd_control_options {
    struct epd_core *core; /* borrowed */
    const char *backend;   /* borrowed: the one in use, "host" */
    const char *node;      /* borrowed */
    const char *socket;    /* borrowed */
};

struct epd_control;

struct epd_control *epd_control_create(const struct epd_control_options *options);
/* Every call must have ended. NULL is fine. */
void epd_control_destroy(struct epd_control *control);

/* Appends the service's methods to methods[*n], at most cap in all; they borrow control. */
void epd_control_methods(struct epd_control *control, struct epd_rpc_method *methods, unsigned *n,
                         unsigned cap);
#define EPD_CONTROL_METHODS 22u

/* Finish event streams: their readers would keep the server busy. */
void epd_control_end_streams(struct epd_control *control);

#endif
