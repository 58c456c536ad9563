/* Waiting: wake-ups by a thread that plays the engine, deadlines, deaths, forks. */
#include "tests/unit/client/fake.h"

#include <sys/wait.h>

#define MS 1000000ll

struct engine {
    struct fake *f;
    uint64_t until; /* posts this many, */
    long pause_ns;  /* this long after each entry was seen */
};

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    while (e->f->posted < e->until) {
        if (!fake_next(e->f)) {
            (void)sched_yield();
            continue;
        }
        struct timespec ts = {.tv_nsec = e->pause_ns};
        if (e->pause_ns)
            (void)nanosleep(&ts, NULL);
        fake_post(e->f, EPD_OK);
    }
    return NULL;
}

static void with_engine(uint64_t spin_ns, long pause_ns, uint64_t rounds)
{
    struct fake f;
    struct epd_result r;
    pthread_t thread;
    fake_init(&f, 8);
    f.epd.spin_ns = spin_ns;
    struct engine e = {.f = &f, .until = rounds, .pause_ns = pause_ns};
    CHECK(pthread_create(&thread, NULL, engine_main, &e) == 0);
    for (uint64_t i = 0; i < rounds; i++) {
        CHECK(fake_dispatch(&f, NULL) == EPD_OK);
        CHECK(epd_wait(&f.lease, -1, &r) == EPD_OK);
        CHECK(r.status == EPD_OK && r.ticket == i && r.epoch == i);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    fake_fini(&f);
}

static void wakes_up(void **state)
{
    (void)state;
    with_engine(0, 0, 5000);
    with_engine(20000, 0, 5000);
    with_engine(0, 300000, 200);
}

static void pipelined(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_ticket t;
    pthread_t thread;
    fake_init(&f, 8);
    struct engine e = {.f = &f, .until = 4000};
    CHECK(pthread_create(&thread, NULL, engine_main, &e) == 0);
    for (int i = 0; i < 500; i++) {
        for (int k = 0; k < 8; k++)
            CHECK(fake_dispatch(&f, &t) == EPD_OK);
        CHECK(epd_wait_ticket(&f.lease, t.ticket, 5000 * MS, &r) == EPD_OK);
        CHECK(r.ticket == t.ticket && f.lease.consumed == f.lease.submitted);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    fake_fini(&f);
}

static void deadline(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EINVAL); /* nothing in flight */
    CHECK(epd_poll(&f.lease, &r) == EPD_EAGAIN);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    const int64_t waits[] = {0, 3, 20, 120};
    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        int64_t begin = fake_now_ms();
        CHECK(epd_wait(&f.lease, waits[i] * MS, &r) == EPD_ETIMEDOUT);
        int64_t took = fake_now_ms() - begin;
        CHECK(took >= waits[i] - 1 && took <= waits[i] + 50); /* room for a busy machine */
    }
    CHECK(fake_bells(&f) >= 1); /* rung again while waiting, though the engine never slept */
    fake_post(&f, EPD_OK);
    CHECK(epd_wait(&f.lease, 0, &r) == EPD_OK && r.ticket == 0);
    fake_fini(&f);
}

static void ticket_rules(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    for (int i = 0; i < 5; i++)
        CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    fake_post(&f, EPD_OK);
    CHECK(epd_wait_ticket(&f.lease, 5, 0, &r) == EPD_EINVAL); /* not issued */
    CHECK(epd_wait_ticket(&f.lease, 2, 0, &r) == EPD_ETIMEDOUT);
    CHECK(f.lease.consumed == 0); /* a timeout consumes nothing */
    const struct epd_completion bad = {.kind = EPD_OP_DISPATCH,
                                       .status = EPD_ERANKLATE,
                                       .epoch = 1,
                                       .flags = EPD_COMPLETION_EPOCH_CONSUMED};
    fake_post_completion(&f, &bad);
    fake_post(&f, EPD_OK);
    CHECK(epd_wait_ticket(&f.lease, 2, 0, &r) == EPD_OK);
    CHECK(r.ticket == 1 && r.status == EPD_ERANKLATE && f.lease.consumed == 3);
    CHECK(epd_wait_ticket(&f.lease, 2, 0, &r) == EPD_EINVAL); /* consumed */
    fake_fini(&f);
}

static void connection_closed(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK && fake_dispatch(&f, NULL) == EPD_OK);
    CHECK(epd_session_check(&f.epd) == EPD_OK);
    fake_post(&f, EPD_OK);
    CHECK(close(f.daemon_end) == 0);
    f.daemon_end = -1;
    int64_t begin = fake_now_ms();
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_OK && r.ticket == 0); /* what is there comes first */
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EDAEMONLOST);
    CHECK(fake_now_ms() - begin <= 1000);
    CHECK(epd_poll(&f.lease, &r) == EPD_EDAEMONLOST);
    CHECK(epd_wait(&f.lease, 0, &r) == EPD_EDAEMONLOST);
    CHECK(fake_dispatch(&f, NULL) == EPD_EDAEMONLOST);
    CHECK(epd_session_check(&f.epd) == EPD_EDAEMONLOST);
    fake_post(&f, EPD_EDAEMONLOST);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.ticket == 1);
    fake_fini(&f);
}

static void session_ended_alone(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f, 8);
    f.epd.daemon_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (f.epd.daemon_fd >= 0) {
        CHECK(close(f.daemon_end) == 0);
        f.daemon_end = -1;
        CHECK(epd_session_check(&f.epd) == EPD_ESESSIONLOST);
        CHECK(close(f.epd.daemon_fd) == 0);
    }
    fake_fini(&f);
}

static void page_says_lost(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    __atomic_store_n(&f.page->state, EPD_ENGINE_DAEMON_LOST, __ATOMIC_RELEASE);
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EDAEMONLOST);
    fake_fini(&f);
}

static void poll_learns_of_a_death(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    enum epd_status status = EPD_EAGAIN;
    fake_init(&f, 8);
    CHECK(epd_poll(&f.lease, &r) == EPD_EAGAIN);
    CHECK(close(f.daemon_end) == 0);
    f.daemon_end = -1;
    int64_t begin = fake_now_ms();
    while (status == EPD_EAGAIN && fake_now_ms() - begin < 2000)
        status = epd_poll(&f.lease, &r);
    CHECK(status == EPD_EDAEMONLOST);
    fake_fini(&f);
}

static void engine_down(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    __atomic_store_n(&f.page->state, EPD_ENGINE_DEAD, __ATOMIC_RELEASE);
    CHECK(epd_wait(&f.lease, 120 * MS, &r) == EPD_ETIMEDOUT); /* it may come back */
    CHECK(f.lease.dead_ns != 0);
    f.lease.dead_ns -= 11000000000ull; /* as if it had been down for long */
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EDEVICE);
    /* The next incarnation posts what was in the ring. */
    fake_post(&f, EPD_EENGINERESTARTED);
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_OK && r.status == EPD_EENGINERESTARTED);
    fake_fini(&f);
}

static void damaged_ring(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    epd_ring_header_at(f.lease.area)->completed = 77;
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EINTERNAL);
    CHECK(epd_poll(&f.lease, &r) == EPD_EINTERNAL);
    epd_ring_header_at(f.lease.area)->completed = 1; /* counted, but the slot says otherwise */
    CHECK(epd_wait(&f.lease, -1, &r) == EPD_EINTERNAL);
    fake_fini(&f);
}

/* The child reports by its exit status: 0 when every call refused. */
static void forked_child(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_error err;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int bad = fake_dispatch(&f, NULL) != EPD_EFORKED;
        bad |= epd_release(&f.lease, 0, NULL) != EPD_EFORKED;
        bad |= epd_poll(&f.lease, &r) != EPD_EFORKED;
        bad |= epd_wait(&f.lease, -1, &r) != EPD_EFORKED;
        bad |= epd_wait_ticket(&f.lease, 0, -1, &r) != EPD_EFORKED;
        bad |= epd_session_check(&f.epd) != EPD_EFORKED;
        bad |= epd_rearm(&f.lease, &err) != EPD_EFORKED || err.status != EPD_EFORKED;
        bad |= epd_group_destroy(&f.epd, 1, 0, &err) != EPD_EFORKED;
        epd_lease_release(&f.lease); /* does nothing here */
        _exit(bad);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK); /* the parent is untouched */
    fake_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wakes_up),          cmocka_unit_test(pipelined),
        cmocka_unit_test(deadline),          cmocka_unit_test(ticket_rules),
        cmocka_unit_test(connection_closed), cmocka_unit_test(session_ended_alone),
        cmocka_unit_test(page_says_lost),    cmocka_unit_test(poll_learns_of_a_death),
        cmocka_unit_test(engine_down),       cmocka_unit_test(damaged_ring),
        cmocka_unit_test(forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
