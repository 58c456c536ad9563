/* The scheduler's loop, with everything around it stubbed: what it looks at, in which order, before
 * it goes to sleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "daemon/base/util.h"
#include "daemon/engine/control.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/peers.h"
#include "daemon/engine/sched.h"
#include "daemon/engine/workers.h"

static struct {
    struct epd_status_page page;
    struct epd_engine engine;
    unsigned turns_left;    /* of the loop, then STOP */
    int done_fd;            /* of the workers */
    bool idle;              /* no batch */
    bool pending_when_told; /* an entry that came after the last step, with `sleeping` unseen */
    bool rang_when_told;    /* the same of a bell */
    bool heard;             /* listen was called since the last step */
    unsigned looked, sleeps, steps;
    uint64_t deadline, slept_ns;
} g;

enum epd_control_state epd_control_state(const struct epd_engine *engine)
{
    (void)engine;
    return g.turns_left-- > 0 ? EPD_CONTROL_OPEN : EPD_CONTROL_STOP;
}
bool epd_control_poll(struct epd_engine *engine)
{
    (void)engine;
    return false;
}
uint32_t epd_control_spin_us(const struct epd_engine *engine)
{
    (void)engine;
    return 0;
}
void epd_peers_listen(struct epd_peers *peers)
{
    (void)peers;
    g.heard = true;
}
bool epd_peers_flush(struct epd_peers *peers)
{
    (void)peers;
    return false;
}
/* Whoever writes loads `sleeping` after it: only what came before it was set is seen here. */
bool epd_peers_rang(const struct epd_peers *peers)
{
    (void)peers;
    g.looked += g.page.sleeping;
    return g.rang_when_told && g.page.sleeping != 0;
}
bool epd_groups_pending(const struct epd_engine *engine)
{
    (void)engine;
    g.looked += g.page.sleeping;
    return g.pending_when_told && g.page.sleeping != 0;
}
bool epd_groups_step(struct epd_engine *engine)
{
    (void)engine;
    assert_true(g.heard); /* a bell that rings during the step must still be new after it */
    g.heard = false;
    g.steps++;
    assert_int_equal(g.page.sleeping, 0);
    return false;
}
uint64_t epd_groups_deadline(const struct epd_engine *engine)
{
    (void)engine;
    return g.deadline;
}
bool epd_workers_run_one(struct epd_workers *workers)
{
    (void)workers;
    return false;
}
bool epd_workers_idle(const struct epd_workers *workers)
{
    (void)workers;
    return g.idle;
}
uint64_t epd_workers_tasks(const struct epd_workers *workers)
{
    (void)workers;
    return 0;
}
int epd_workers_done_fd(const struct epd_workers *workers)
{
    (void)workers;
    return g.done_fd;
}
void epd_doorbells_sleep(struct epd_doorbells *d, uint64_t timeout_ns)
{
    (void)d;
    assert_int_equal(g.page.sleeping, 1);
    g.sleeps++;
    g.slept_ns = timeout_ns;
}

static void begin(void)
{
    memset(&g, 0, sizeof(g));
    g.engine.status = &g.page;
    g.turns_left = 10;
    g.done_fd = 3;
    g.idle = true;
    g.deadline = UINT64_MAX;
}

static void sleeps_when_idle(void **state)
{
    (void)state;
    begin();
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 10);
    assert_int_equal(g.steps, 10);
    assert_int_equal(g.looked, 20); /* at bells and rings, each time, after it was announced */
    assert_true(g.slept_ns == UINT64_MAX);
    assert_int_equal(g.page.sleeping, 0);
}

static void entry_keeps_it_awake(void **state)
{
    (void)state;
    begin();
    g.pending_when_told = true;
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 0);
    assert_int_equal(g.steps, 10);
}

static void bell_keeps_it_awake(void **state)
{
    (void)state;
    begin();
    g.rang_when_told = true;
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 0);
}

static void own_batch_keeps_it_awake(void **state)
{
    (void)state;
    begin();
    g.idle = false;
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 10); /* its threads ring when they are done */
    begin();
    g.idle = false;
    g.done_fd = -1;
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 0);
}

static void deadline_ends_the_sleep(void **state)
{
    (void)state;
    begin();
    g.deadline = epd_now_ns() + 3600000000000ull;
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 10);
    assert_in_range(g.slept_ns, 1, 3600000000000ull);
    begin();
    g.deadline = 1; /* passed */
    epd_sched_run(&g.engine);
    assert_int_equal(g.sleeps, 0);
    assert_int_equal(g.steps, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sleeps_when_idle),        cmocka_unit_test(entry_keeps_it_awake),
        cmocka_unit_test(bell_keeps_it_awake),     cmocka_unit_test(own_batch_keeps_it_awake),
        cmocka_unit_test(deadline_ends_the_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
