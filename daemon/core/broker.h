/* The fd socket: one SEQPACKET connection redeems one token (proto/README.md, "Sockets"). A
 * connection that says nothing for two seconds is dropped. Thread rule: the loop's thread. */
#ifndef EPD_CORE_BROKER_H
#define EPD_CORE_BROKER_H

#include "daemon/core/core_internal.h"

struct epd_broker;

enum epd_status epd_broker_open(struct epd_core *core, struct epd_broker **out,
                                struct epd_error *err);
/* Stops listening, drops connections, unlinks the socket; frees in the loop. NULL is fine. */
void epd_broker_close(struct epd_broker *broker);

#endif
