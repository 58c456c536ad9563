/* Generations and failed epochs: the order of messages, and who is waited for. */
#include "daemon/core/change.h"

#include "daemon/core/epoch.h"
#include "tests/unit/core/fake.h"

static struct epd_group *two_leased(struct fixture *f, struct client c[2],
                                    struct epd_group_request r)
{
    client_open(f, &c[0]);
    client_open(f, &c[1]);
    const struct made m = group_make(f, &c[0], r);
    assert_int_equal(m.err.status, EPD_OK);
    assert_int_equal(m.group->state, EPD_GROUP_ARMED);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(client_lease(f, &c[rank], m.group->id, rank), EPD_OK);
    log_clear(f);
    return m.group;
}

static void rank_lost(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    assert_int_equal(g->generation, 1);
    epd_close_fd(&c[0].far);
    until(&f, g->state == EPD_GROUP_REARM && g->seat[0].lease == NULL);
    assert_int_equal(g->generation, 2);
    assert_int_equal(g->cause.status, EPD_ERANKLOST);
    assert_int_equal(g->cause.rank, 0);
    for (unsigned d = 0; d < 2; d++) {
        char revoke[16], generation[32];
        (void)snprintf(revoke, sizeof(revoke), "%u REVOKE -1", d);
        (void)snprintf(generation, sizeof(generation), "%u GENERATION 2 3", d);
        assert_true(before(&f, revoke, "0 GENERATION 2 3"));
        assert_true(before(&f, revoke, "1 GENERATION 2 3"));
        assert_true(before(&f, generation, "0 ARM 2 3"));
        assert_true(before(&f, generation, "1 ARM 2 3"));
    }
    assert_true(before(&f, "0 GENERATION 2 3", "0 SEAT_CLEAR"));
    assert_true(before(&f, "0 SEAT_CLEAR", "0 ARM 2 3"));
    assert_int_equal(client_rearm(&f, &c[1]), EPD_OK);
    assert_int_equal(c[1].lease.generation, 2);
    assert_int_equal(g->state, EPD_GROUP_ARMED);
    /* The first lease of a seat that nobody held in this generation changes nothing. */
    client_open(&f, &c[0]);
    assert_int_equal(client_lease(&f, &c[0], g->id, 0), EPD_OK);
    assert_int_equal(c[0].lease.generation, 2);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

static void takeover(void **state)
{
    struct fixture f;
    struct client c[2], d;
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    client_open(&f, &d);
    assert_int_equal(client_lease(&f, &d, g->id, 0), EPD_EBUSY);
    client_ask(&d, g->id, 0, true);
    until(&f, d.done);
    assert_int_equal(d.err.status, EPD_OK);
    assert_int_equal(d.lease.generation, 2);
    assert_int_equal(g->cause.status, EPD_ERANKJOINED);
    assert_true(before(&f, "0 SEAT_CLEAR", "0 SEAT_SET 0"));
    assert_true(before(&f, "0 SEAT_SET 0", "0 ARM 2 3"));
    assert_int_equal(client_rearm(&f, &c[0]), EPD_ESTALE);
    assert_int_equal(client_rearm(&f, &c[1]), EPD_OK);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
    epd_close_fd(&d.far);
}

static void absent_seats(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 1, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){.allow_absent = true});
    assert_int_equal(g->generation, 3); /* each lease is a change */
    assert_int_equal(c[1].lease.generation, 3);
    assert_int_equal(epd_group_present(g), 3);
    epd_close_fd(&c[0].far);
    until(&f, g->generation == 4 && g->state == EPD_GROUP_REARM);
    assert_true(log_line(&f, "0 ARM 4 2", 1) != 0);
    fixture_close(&f);
    epd_close_fd(&c[1].far);
}

static void revoke_not_answered(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 2, "mute:1:REVOKE;");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    epd_close_fd(&c[0].far);
    until(&f, g->state == EPD_GROUP_WAITING || g->state == EPD_GROUP_REARM);
    assert_int_equal(f.core->counters.revoke_kills, 1);
    until(&f, g->state == EPD_GROUP_REARM);
    assert_int_equal(g->generation, 2); /* one change, not two */
    assert_int_equal(epd_device_incarnation(f.core->device[1]), 2);
    /* The new engine learns everything before it is armed. */
    assert_true(before(&f, "1 CONFIG", "1 GROUP_SET"));
    assert_true(before(&f, "1 GROUP_SET", "1 SEAT_SET 1"));
    assert_true(before(&f, "1 SEAT_SET 1", "1 GENERATION 2 3"));
    assert_true(before(&f, "1 GENERATION 2 3", "0 ARM 2 3"));
    fixture_close(&f);
    epd_close_fd(&c[1].far);
}

static void engine_killed(void **state)
{
    struct fixture f;
    struct client c[2];
    struct epd_device_info info;
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    epd_device_info(f.core->device[1], &info);
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    until(&f, g->generation == 2 && g->state == EPD_GROUP_REARM);
    assert_int_equal(g->cause.status, EPD_EENGINERESTARTED);
    assert_true(before(&f, "0 PEER_GONE", "0 PEER"));
    assert_true(before(&f, "1 SEAT_SET 1", "1 ARM 2 3"));
    assert_int_equal(log_line(&f, "0 GENERATION 2 3", 2), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_rearm(&f, &c[i]), EPD_OK);
    assert_int_equal(c[1].lease.incarnation, 2);
    assert_int_equal(c[1].lease.n_grants, 3); /* nothing was fetched, so all again */
    assert_int_equal(g->state, EPD_GROUP_ARMED);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

/* Both engines and a client at once: still one way to the end. */
static void all_at_once(void **state)
{
    struct fixture f;
    struct client c[2];
    struct epd_device_info info;
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    for (unsigned i = 0; i < 2; i++) {
        epd_device_info(f.core->device[i], &info);
        assert_int_equal(kill(info.pid, SIGKILL), 0);
    }
    epd_close_fd(&c[0].far);
    until(&f, g->state == EPD_GROUP_REARM && g->seat[0].lease == NULL);
    assert_int_equal(client_rearm(&f, &c[1]), EPD_OK);
    assert_int_equal(g->state, EPD_GROUP_ARMED);
    fixture_close(&f);
    epd_close_fd(&c[1].far);
}

static void epoch_failed_once(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    const struct epd_msg_epoch msg = {.group = g->id,
                                      .epoch = 7,
                                      .generation = 1,
                                      .status = EPD_ERANKLATE,
                                      .rank = 1,
                                      .other_rank = -1};
    epd_epoch_report(f.core, &msg);
    epd_epoch_report(f.core, &msg);
    until(&f, g->failed_epochs == 1);
    epd_epoch_report(f.core, &msg);
    until(&f, log_line(&f, "1 FAIL 7", 1) != 0 && log_line(&f, "0 FAIL 7", 1) != 0);
    assert_int_equal(log_line(&f, "0 REVOKE 7", 2), 0);
    assert_true(before(&f, "0 REVOKE 7", "1 FAIL 7"));
    assert_true(before(&f, "1 REVOKE 7", "0 FAIL 7"));
    assert_int_equal(g->failed_epochs, 1);
    assert_int_equal(g->generation, 1);
    struct epd_msg_epoch old = msg;
    old.generation = 0;
    old.epoch = 8;
    epd_epoch_report(f.core, &old); /* of another generation: nothing */
    assert_int_equal(g->n_failing, 1);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

/* A change that begins while an epoch fails makes the failure void. */
static void epoch_overtaken(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    const struct epd_msg_epoch msg = {.group = g->id,
                                      .epoch = 0,
                                      .generation = 1,
                                      .status = EPD_ERANKLATE,
                                      .rank = 1,
                                      .other_rank = -1};
    const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
    epd_epoch_report(f.core, &msg);
    epd_change_begin(g, &cause, "reset");
    until(&f, g->state == EPD_GROUP_REARM);
    assert_int_equal(g->failed_epochs, 0);
    assert_int_equal(log_line(&f, "0 FAIL 0", 1), 0);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

/* A cause that comes after ARM was sent is a change of its own. */
static void two_causes(void **state)
{
    struct fixture f;
    struct client c[2];
    const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
    (void)state;
    fixture_open(&f, 2, "");
    struct epd_group *g = two_leased(&f, c, (struct epd_group_request){0});
    epd_change_begin(g, &cause, "first");
    epd_change_begin(g, &cause, "merged");
    until(&f, g->state == EPD_GROUP_ARMING);
    assert_int_equal(g->generation, 2);
    epd_change_begin(g, &cause, "second");
    until(&f, g->generation == 3 && g->state == EPD_GROUP_REARM);
    assert_string_equal(g->cause_text, "second");
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_lost),         cmocka_unit_test(takeover),
        cmocka_unit_test(absent_seats),      cmocka_unit_test(revoke_not_answered),
        cmocka_unit_test(engine_killed),     cmocka_unit_test(all_at_once),
        cmocka_unit_test(epoch_failed_once), cmocka_unit_test(epoch_overtaken),
        cmocka_unit_test(two_causes),
    };
    FAKE_MAIN(tests);
}
