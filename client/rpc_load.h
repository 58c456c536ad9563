/* Finds and loads libepd-rpc.so, the only part of the client that knows gRPC. */
#ifndef EPD_CLIENT_RPC_LOAD_H
#define EPD_CLIENT_RPC_LOAD_H

#include "proto/errors.h"

struct epd_rpc_table;

/* The function table, loaded once for the process and never unloaded (gRPC has threads). Order:
 * EPD_RPC_LIB alone when set (not in a setuid program); else the directory of libepd.so (or of the
 * program that contains libepd.a), its ../lib, the loader's own search. Opened RTLD_LOCAL |
 * RTLD_DEEPBIND, so that a program with another gRPC keeps its own and the library gets its own.
 * Thread-safe. Errors: EUNSUPPORTED (the message names the paths tried), EVERSION. */
enum epd_status epdc_rpc_load(const struct epd_rpc_table **out, struct epd_error *err);

#endif
