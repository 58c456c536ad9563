/* What wakes a sleeping engine: bells of peers and doorbells of seats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/peers.h"
#include "daemon/ipc/memfd.h"

#define FAR 10000000000ull /* ns: a sleep that reaches this was not rung */

/* ---- an engine, as far as it can be rung ---- */

struct end {
    struct epd_engine engine;
    int status_fd;
};

static struct end *end_new(uint32_t device)
{
    struct end *e = calloc(1, sizeof(*e));
    void *page = NULL;
    e->engine.device = device;
    assert_int_equal(epd_peers_create(device, &e->engine.peers, NULL), EPD_OK);
    assert_int_equal(epd_memfd_create("unit", EPD_STATUS_PAGE_BYTES, false, &e->status_fd, NULL),
                     EPD_OK);
    assert_int_equal(epd_memfd_map(e->status_fd, EPD_STATUS_PAGE_BYTES, true, &page, NULL), EPD_OK);
    e->engine.status = page;
    assert_int_equal(epd_doorbells_create(&e->engine.doorbells, NULL), EPD_OK);
    assert_int_equal(epd_doorbells_watch(e->engine.doorbells,
                                         epd_peers_doorbell_fd(e->engine.peers), true, NULL),
                     EPD_OK);
    return e;
}

static void end_free(struct end *e)
{
    epd_doorbells_destroy(e->engine.doorbells);
    epd_peers_destroy(e->engine.peers);
    epd_memfd_unmap(e->engine.status, EPD_STATUS_PAGE_BYTES);
    epd_close_fd(&e->status_fd);
    free(e);
}

static void introduce(struct end *to, const struct end *peer)
{
    int fds[3] = {dup(peer->status_fd), dup(epd_peers_doorbell_fd(peer->engine.peers)),
                  dup(epd_peers_bell_fd(peer->engine.peers))};
    assert_int_equal(epd_peers_set(to->engine.peers, peer->engine.device, fds, NULL), EPD_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(fds[i], -1);
    (void)epd_peers_flush(to->engine.peers); /* an introduction rings */
}

static bool doorbell_rang(const struct end *e)
{
    eventfd_t n;
    return eventfd_read(epd_peers_doorbell_fd(e->engine.peers), &n) == 0;
}

static void a_flush_rings_once(void **state)
{
    (void)state;
    struct end *a = end_new(0), *b = end_new(3);
    introduce(a, b);
    epd_peers_listen(b->engine.peers);
    assert_false(epd_peers_flush(a->engine.peers));
    assert_false(epd_peers_rang(b->engine.peers));

    /* awake: the bell alone */
    epd_engine_publish_to(&a->engine, 3);
    epd_engine_publish_to(&a->engine, 3);
    assert_false(epd_peers_rang(b->engine.peers)); /* at the end of the step, not before */
    assert_false(epd_peers_flush(a->engine.peers));
    assert_true(epd_peers_rang(b->engine.peers));
    assert_false(doorbell_rang(b));
    epd_peers_listen(b->engine.peers);
    assert_false(epd_peers_rang(b->engine.peers));

    /* asleep: the doorbell too */
    b->engine.status->sleeping = 1;
    epd_engine_publish_to(&a->engine, 3);
    (void)epd_peers_flush(a->engine.peers);
    assert_true(epd_peers_rang(b->engine.peers));
    assert_true(doorbell_rang(b));

    /* own device: another step, no bell; unknown: nothing */
    epd_engine_publish_to(&a->engine, 0);
    epd_engine_publish_to(&a->engine, 9);
    assert_true(epd_peers_flush(a->engine.peers));
    assert_false(epd_peers_flush(a->engine.peers));

    epd_peers_gone(a->engine.peers, 3);
    epd_peers_listen(b->engine.peers);
    epd_engine_publish_to(&a->engine, 3);
    (void)epd_peers_flush(a->engine.peers);
    assert_false(epd_peers_rang(b->engine.peers));
    epd_peers_gone(a->engine.peers, 3); /* twice is fine */
    end_free(a);
    end_free(b);
}

/* The n-th ring of a new incarnation must differ from the last of the old one, whatever n. */
static void a_restarted_peer_is_heard(void **state)
{
    (void)state;
    struct end *b = end_new(1);
    for (unsigned rings = 0; rings < 4; rings++) {
        struct end *a = end_new(0);
        introduce(a, b);
        for (unsigned i = 0; i < rings; i++) {
            epd_engine_publish_to(&a->engine, 1);
            (void)epd_peers_flush(a->engine.peers);
        }
        epd_peers_listen(b->engine.peers);
        end_free(a);
        struct end *next = end_new(0);
        introduce(next, b);
        if (!epd_peers_rang(b->engine.peers))
            fail_msg("after %u rings a restart is not heard", rings);
        end_free(next);
    }
    end_free(b);
}

static void bad_peers_are_refused(void **state)
{
    (void)state;
    struct end *a = end_new(2);
    struct epd_error err;
    int bad[3] = {-1, -1, -1};
    assert_int_equal(epd_peers_set(a->engine.peers, 2, bad, &err), EPD_EINVAL);
    assert_int_equal(epd_peers_set(a->engine.peers, EPD_MAX_DEVICES, bad, &err), EPD_EINVAL);
    assert_int_equal(epd_peers_set(a->engine.peers, 1, bad, &err), EPD_ESYS);
    end_free(a);
}

/* ---- no wake-up is lost between two engines ---- */

#define TURNS 3000u
struct player {
    struct end *self;
    uint32_t peer;
    _Atomic uint32_t *ball; /* whose turn it is: what an exchange chunk would hold */
    bool lost;
};

/* The scheduler's loop in small: listen, step, flush, and sleep by the protocol. */
static void *play(void *arg)
{
    struct player *p = arg;
    struct epd_engine *e = &p->self->engine;
    for (uint32_t turn = e->device; turn < TURNS && !p->lost;) {
        epd_peers_listen(e->peers);
        if (atomic_load_explicit(p->ball, memory_order_acquire) == turn) {
            atomic_store_explicit(p->ball, turn + 1, memory_order_release);
            epd_engine_publish_to(e, p->peer);
            turn += 2;
            (void)epd_peers_flush(e->peers);
            continue;
        }
        __atomic_store_n(&e->status->sleeping, 1, __ATOMIC_SEQ_CST);
        if (!epd_peers_rang(e->peers)) {
            const uint64_t before = epd_now_ns();
            epd_doorbells_sleep(e->doorbells, FAR);
            p->lost = epd_now_ns() - before >= FAR;
        }
        __atomic_store_n(&e->status->sleeping, 0, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void no_wake_up_is_lost(void **state)
{
    (void)state;
    _Atomic uint32_t ball = 0;
    struct end *a = end_new(0), *b = end_new(1);
    introduce(a, b);
    introduce(b, a);
    struct player players[2] = {{.self = a, .peer = 1, .ball = &ball},
                                {.self = b, .peer = 0, .ball = &ball}};
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        (void)pthread_join(threads[i], NULL);
    assert_false(players[0].lost || players[1].lost);
    assert_int_equal(atomic_load(&ball), TURNS);
    end_free(a);
    end_free(b);
}

/* ---- doorbells of seats ---- */

static bool woken(struct epd_doorbells *d, uint64_t timeout_ns)
{
    const uint64_t before = epd_now_ns();
    epd_doorbells_sleep(d, timeout_ns);
    return epd_now_ns() - before < timeout_ns;
}

static struct epd_doorbells *seats_of(int client, unsigned n)
{
    struct epd_doorbells *d = NULL;
    assert_int_equal(epd_doorbells_create(&d, NULL), EPD_OK);
    for (uint32_t rank = 0; rank < n; rank++) {
        int fd = dup(client);
        assert_int_equal(epd_doorbells_add(d, 5, rank, &fd, NULL), EPD_OK);
        assert_int_equal(fd, -1);
    }
    return d;
}

static void a_write_wakes_once(void **state)
{
    (void)state;
    int client = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epd_doorbells *d = seats_of(client, 1);
    assert_false(woken(d, 2000000));
    for (unsigned i = 0; i < 3; i++) {
        (void)eventfd_write(client, 1);
        assert_true(woken(d, FAR));
        assert_false(woken(d, 2000000));
    }
    /* One that came before the doorbell was known counts as well. */
    epd_doorbells_remove(d, 5, 0);
    int fd = dup(client);
    assert_int_equal(epd_doorbells_add(d, 5, 0, &fd, NULL), EPD_OK);
    assert_true(woken(d, FAR));
    epd_doorbells_remove(d, 5, 0);
    (void)eventfd_write(client, 1);
    assert_false(woken(d, 2000000));
    epd_doorbells_destroy(d);
    epd_doorbells_destroy(NULL);
    epd_close_fd(&client);
}

/* The client shares the file description: it can make reads of it block, drain it and fill it. */
static void a_client_cannot_hold_the_engine(void **state)
{
    (void)state;
    int client = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epd_doorbells *d = seats_of(client, 2);
    eventfd_t n;
    assert_int_equal(fcntl(client, F_SETFL, 0), 0);
    (void)eventfd_write(client, 1);
    assert_true(woken(d, FAR));
    (void)eventfd_write(client, 1);
    (void)eventfd_read(client, &n);
    epd_doorbells_sleep(d, 2000000); /* comes back, rung or not */
    (void)eventfd_write(client, UINT64_MAX - 1);
    assert_true(woken(d, FAR));
    assert_false(woken(d, 2000000)); /* full is not for ever awake */
    epd_doorbells_destroy(d);
    epd_close_fd(&client);
}

static void seats_go_one_by_one_or_with_their_group(void **state)
{
    (void)state;
    int client = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), other = dup(client);
    struct epd_doorbells *d = seats_of(client, 3);
    assert_int_equal(epd_doorbells_add(d, 6, 0, &other, NULL), EPD_OK);
    epd_doorbells_remove(d, 5, 1);
    epd_doorbells_remove(d, 5, 1);
    epd_doorbells_remove(d, 5, -1);
    (void)eventfd_write(client, 1);
    assert_true(woken(d, FAR)); /* group 6 */
    epd_doorbells_remove(d, 6, -1);
    (void)eventfd_write(client, 1);
    assert_false(woken(d, 2000000));
    int bad = -1;
    struct epd_error err;
    assert_int_equal(epd_doorbells_add(d, 5, 0, &bad, &err), EPD_ESYS);
    epd_doorbells_destroy(d);
    epd_close_fd(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flush_rings_once),
        cmocka_unit_test(a_restarted_peer_is_heard),
        cmocka_unit_test(bad_peers_are_refused),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_write_wakes_once),
        cmocka_unit_test(a_client_cannot_hold_the_engine),
        cmocka_unit_test(seats_go_one_by_one_or_with_their_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
