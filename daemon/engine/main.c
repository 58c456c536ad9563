/* epd-engine: one device's data plane. Started by epd, never by hand: descriptor 3 is its end of
 * the supervisor's socketpair, descriptor 4 the inherited lock that keeps a new supervisor waiting
 * until this process is gone. */
#define EPD_LOG_COMPONENT "engine"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/engine/control.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/peers.h"
#include "daemon/engine/sched.h"
#include "daemon/engine/transport.h"
#include "daemon/engine/workers.h"
#include "daemon/ipc/memfd.h"
#include "proto/version.h"

static bool started_by_supervisor(void)
{
    int type = 0, domain = 0;
    socklen_t len = sizeof(type);
    return getsockopt(EPD_ENGINE_FD, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
           type == SOCK_SEQPACKET &&
           getsockopt(EPD_ENGINE_FD, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
           domain == AF_UNIX;
}

/* The supervisor decides when an engine ends; a terminal's Ctrl-C reaches both. */
static void ignore_signals(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};
    for (size_t i = 0; i < EPD_ARRAY_LEN(ignored); i++)
        (void)signal(ignored[i], SIG_IGN);
    sigset_t none; /* the supervisor's mask is inherited */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static enum epd_status start(struct epd_engine *engine, struct epd_error *err)
{
    engine->transport = &epd_transport_host;
    enum epd_status status = epd_control_create(engine, EPD_ENGINE_FD, err);
    if (status == EPD_OK)
        status = epd_doorbells_create(&engine->doorbells, err);
    if (status == EPD_OK)
        status = epd_chunks_create(engine->transport, &engine->chunks, err);
    if (status == EPD_OK)
        status = epd_control_wait_config(engine, 10000, err);
    if (status == EPD_OK)
        status = epd_workers_create(epd_control_workers(engine), &engine->workers, err);
    if (status == EPD_OK)
        status = epd_doorbells_watch(engine->doorbells, EPD_ENGINE_FD, false, err);
    if (status == EPD_OK)
        status =
            epd_doorbells_watch(engine->doorbells, epd_peers_doorbell_fd(engine->peers), true, err);
    if (status == EPD_OK && epd_workers_done_fd(engine->workers) >= 0)
        status =
            epd_doorbells_watch(engine->doorbells, epd_workers_done_fd(engine->workers), true, err);
    return status;
}

static int leave(struct epd_engine *engine)
{
    const enum epd_control_state state = epd_control_state(engine);
    /* As in a crash: the daemon lives, so nobody may hear that it is lost. The supervisor marks the
     * page, and the next incarnation completes what the seats have in flight. */
    if (state == EPD_CONTROL_BROKEN)
        _exit(3);
    engine->now_ns = epd_now_ns();
    epd_groups_poison(engine, EPD_EDAEMONLOST);
    __atomic_store_n(&engine->status->state,
                     state == EPD_CONTROL_STOP ? EPD_ENGINE_STOPPED : EPD_ENGINE_DAEMON_LOST,
                     __ATOMIC_RELEASE);
    if (state == EPD_CONTROL_LOST)
        log_info("the supervisor is gone: leaving");
    epd_workers_destroy(engine->workers);
    epd_chunks_destroy(engine->chunks);
    epd_doorbells_destroy(engine->doorbells);
    epd_peers_destroy(engine->peers);
    epd_memfd_unmap(engine->status, EPD_STATUS_PAGE_BYTES);
    epd_control_destroy(engine);
    return 0;
}

int main(int argc, char **argv)
{
    struct epd_engine engine = {0};
    struct epd_error err = {.status = EPD_OK};
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)puts("epd-engine " EPD_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        (void)puts("epd-engine [--help | --version]: one device's data plane, started by epd");
        return 0;
    }
    if (argc > 2 || !started_by_supervisor()) { /* argv[1]: the device, for people who read ps */
        (void)fputs("epd-engine is started by epd, not by hand: start `epd` instead\n", stderr);
        return 2;
    }
    epd_log_init(EPD_LOG_INFO, "engine");
    (void)prctl(PR_SET_NAME, "epd-engine");
    ignore_signals();
    if (start(&engine, &err) != EPD_OK) {
        log_error("cannot start: %s", err.message);
        return 1;
    }
    epd_sched_run(&engine);
    return leave(&engine);
}
