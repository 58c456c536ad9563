/* The supervisor's core: devices, sessions, groups, leases, buffers and op descriptors. Knows
 * nothing of gRPC. Everything in this folder belongs to the thread of one libuv loop: no function
 * may be called from another thread, and all callbacks come from that loop.
 *
 *   core      creation, devices' events, drain            events   what happened
 *   device link spawn   one engine process                status   what GetStatus and List* show
 *   replay    what an engine is told after a restart      plan     bytes of a group
 *   chunk alloc  memory                                   fsm      state machines as tables
 *   session broker grant  clients and their descriptors   join waiters must   small tools
 *   group change epoch lease   seats and generations      buffer desc opdesc  op descriptors
 */
#ifndef EPD_CORE_CORE_H
#define EPD_CORE_CORE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/config.h"
#include "daemon/base/error.h"
#include "daemon/ipc/peer.h"

struct epd_core;
struct epd_events;

/* Answers of asynchronous calls. err is NULL when all is well. Called exactly once, possibly before
 * the call that takes it has returned. */
typedef void (*epd_done_fn)(void *arg, const struct epd_error *err);
/* False: the caller no longer wants the answer (cancelled, deadline). May be NULL: always true. */
typedef bool (*epd_alive_fn)(void *arg);

struct epd_core_options {
    uv_loop_t *loop;                 /* borrowed */
    const struct epd_config *config; /* borrowed, resolved (engine_path, workers, ...) */
    const char *socket;              /* borrowed: the control socket; the broker's is <socket>.fd */
    int lock_fd;                     /* borrowed: inherited by the engines */
    /* A device changed its state, or the core's state did. */
    void (*changed)(void *arg);
    void *arg;
};

/* Creates everything; starts nothing. Errors: EPD_EUNSUPPORTED (backend), ... */
enum epd_status epd_core_create(const struct epd_core_options *options, struct epd_core **out,
                                struct epd_error *err);
/* Start the engines; Attach is answered when they run, or after a grace period in any case. */
void epd_core_start(struct epd_core *core);
/* Bind <socket>.fd. */
enum epd_status epd_core_listen(struct epd_core *core, struct epd_error *err);
/* Refuse new sessions. */
void epd_core_drain(struct epd_core *core);
/* End sessions, stop engines; `stopped` is called when all have left. */
void epd_core_stop(struct epd_core *core, void (*stopped)(void *arg), void *arg);
/* After epd_core_stop. The loop must run once more to close handles. NULL is fine. */
void epd_core_destroy(struct epd_core *core);

enum epd_core_state { EPD_CORE_STARTING, EPD_CORE_SERVING, EPD_CORE_DEGRADED, EPD_CORE_DRAINING };
enum epd_core_state epd_core_state(const struct epd_core *core);
const char *epd_core_state_name(enum epd_core_state state);
/* The first start of every device is decided: it runs, or it failed at least once. */
bool epd_core_started(const struct epd_core *core);
bool epd_core_all_running(const struct epd_core *core);
unsigned epd_core_sessions(const struct epd_core *core);
struct epd_events *epd_core_events(struct epd_core *core);
/* uid 0, the daemon's own uid, or the admin group. */
bool epd_core_is_admin(const struct epd_core *core, const struct epd_peer *peer);

#endif
