#include "daemon/engine/sched.h"

#include <sched.h>

#include "daemon/base/util.h"
#include "daemon/engine/control.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/peers.h"
#include "daemon/engine/workers.h"

/* While there is work the control socket is looked at this often (a recv costs a third of a us). */
#define CONTROL_EVERY_NS 50000u
#define HEARTBEAT_EVERY_NS 100000000u

static uint64_t spin_ns(const struct epd_engine *engine)
{
    const uint32_t us = epd_control_spin_us(engine);
    cpu_set_t set;
    if (us != UINT32_MAX)
        return us * 1000ull;
    /* Polling pays only where it does not take a core from a thread that has work. */
    const bool many = sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 4;
    return many ? 20000u : 0;
}

static void update_status(struct epd_engine *engine)
{
    struct epd_status_page *s = engine->status;
    __atomic_store_n(&s->heartbeat_ns, engine->now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&s->ops, engine->ops, __ATOMIC_RELAXED);
    __atomic_store_n(&s->tasks, epd_workers_tasks(engine->workers), __ATOMIC_RELAXED);
}

/* Everything that a wake-up would be lost for: checked between `sleeping` = 1 and the sleep. */
static bool must_not_sleep(struct epd_engine *engine)
{
    if (epd_peers_rang(engine->peers) || epd_groups_pending(engine))
        return true;
    /* With threads, the end of a batch rings done_fd; without, batches are run by this thread. */
    return epd_workers_done_fd(engine->workers) < 0 && !epd_workers_idle(engine->workers);
}

static void sleep_until_rung(struct epd_engine *engine)
{
    struct epd_status_page *s = engine->status;
    __atomic_store_n(&s->sleeping, 1, __ATOMIC_SEQ_CST);
    if (!must_not_sleep(engine)) {
        const uint64_t deadline = epd_groups_deadline(engine), now = epd_now_ns();
        const uint64_t left = deadline == UINT64_MAX ? UINT64_MAX
                              : deadline > now       ? deadline - now
                                                     : 0;
        update_status(engine);
        if (left > 0) {
            epd_doorbells_sleep(engine->doorbells, left);
            __atomic_store_n(&s->wakeups, s->wakeups + 1, __ATOMIC_RELAXED);
        }
    }
    __atomic_store_n(&s->sleeping, 0, __ATOMIC_SEQ_CST);
}

void epd_sched_run(struct epd_engine *engine)
{
    const uint64_t spin = spin_ns(engine);
    uint64_t control_ns = 0, heartbeat_ns = 0, idle_since = 0;
    while (epd_control_state(engine) == EPD_CONTROL_OPEN) {
        engine->now_ns = epd_now_ns();
        bool moved = false;
        if (engine->now_ns >= control_ns) {
            moved = epd_control_poll(engine);
            control_ns = engine->now_ns + CONTROL_EVERY_NS;
        }
        if (engine->now_ns >= heartbeat_ns) {
            update_status(engine);
            heartbeat_ns = engine->now_ns + HEARTBEAT_EVERY_NS;
        }
        epd_peers_listen(engine->peers);
        if (epd_groups_step(engine))
            moved = true;
        if (epd_peers_flush(engine->peers))
            moved = true;
        if (epd_workers_run_one(engine->workers))
            moved = true;
        if (moved) {
            idle_since = 0;
            continue;
        }
        if (idle_since == 0)
            idle_since = engine->now_ns;
        if (engine->now_ns - idle_since < spin)
            continue;
        sleep_until_rung(engine);
        control_ns = 0;
        idle_since = 0;
    }
}
