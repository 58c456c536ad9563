/* grpc.health.v1: Check and Watch. Thread rule: the loop's thread. */
#ifndef EPD_RPC_HEALTH_H
#define EPD_RPC_HEALTH_H

#include "daemon/rpc/server.h"

enum epd_health_state { EPD_HEALTH_SERVING = 1, EPD_HEALTH_NOT_SERVING = 2 };
#define EPD_HEALTH_METHODS 2u

struct epd_health;
/* Services "" (the whole), "readiness", "epd.v1.Control" and "liveness", all NOT_SERVING. */
struct epd_health *epd_health_create(void); /* NULL: out of memory */
/* After the server is gone. NULL is fine. */
void epd_health_destroy(struct epd_health *health);
/* Tells all watchers of the service when the state changes. Unknown services are ignored. */
void epd_health_set(struct epd_health *health, const char *service, enum epd_health_state state);
/* The rows for the server's table. */
void epd_health_methods(struct epd_health *health, struct epd_rpc_method out[EPD_HEALTH_METHODS]);

#endif
