/* Leases: whose they are, and that each is cleared and given back once. */
#include "daemon/core/alloc.h"
#include "tests/unit/core/fake.h"

static void on_released(void *arg, const struct epd_error *err)
{
    struct client *c = arg;
    c->done = true;
    c->err = err != NULL ? *err : (struct epd_error){.status = EPD_OK};
}
static enum epd_status release(struct fixture *f, struct client *c, uint64_t lease)
{
    c->done = false;
    epd_lease_release(c->session, lease, on_released, c);
    until(f, c->done);
    return c->err.status;
}

static uint64_t used_by(const struct fixture *f, const struct epd_session *session)
{
    uint64_t used = 0;
    for (const struct epd_chunk *c = f->core->chunks; c != NULL; c = c->next)
        if (c->session == session && c->alloc != NULL)
            used += epd_alloc_used(c->alloc);
    return used;
}

static void ring_is_given_back(void **state)
{
    struct fixture f;
    struct client c;
    (void)state;
    fixture_open(&f, 1, "");
    client_open(&f, &c);
    const struct made m = group_make(&f, &c, (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_OK);
    for (unsigned i = 0; i < 100; i++) {
        until(&f, m.group->state == EPD_GROUP_ARMED);
        assert_int_equal(client_lease(&f, &c, m.group->id, 0), EPD_OK);
        assert_true(used_by(&f, c.session) > 0);
        assert_int_equal(release(&f, &c, c.lease.lease), EPD_OK);
        assert_int_equal(used_by(&f, c.session), 0);
        assert_int_equal(release(&f, &c, c.lease.lease), EPD_ESTALE);
        assert_int_equal(f.core->leases.used, 0);
    }
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void lease_of_another_session(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 1, "");
    client_open(&f, &c[0]);
    client_open(&f, &c[1]);
    const struct made m = group_make(&f, &c[0], (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_OK);
    assert_int_equal(client_lease(&f, &c[0], m.group->id, 0), EPD_OK);
    c[1].lease = c[0].lease;
    assert_int_equal(client_rearm(&f, &c[1]), EPD_ENOENT);
    assert_int_equal(release(&f, &c[1], c[0].lease.lease), EPD_ENOENT);
    assert_ptr_not_equal(m.group->seat[0].lease, NULL);
    assert_int_equal(release(&f, &c[0], c[0].lease.lease), EPD_OK);
    assert_null(m.group->seat[0].lease);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

/* One engine down: the leaver is cleared at once on the other, and not again when all are back. */
static void cleared_once(void **state)
{
    struct fixture f;
    struct client c[2];
    struct epd_device_info info;
    (void)state;
    fixture_open(&f, 2, "mute:0:SEAT_CLEAR;");
    client_open(&f, &c[0]);
    client_open(&f, &c[1]);
    const struct made m = group_make(&f, &c[0], (struct epd_group_request){0});
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(client_lease(&f, &c[rank], m.group->id, rank), EPD_OK);
    log_clear(&f);
    epd_device_info(f.core->device[1], &info);
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    epd_close_fd(&c[0].far);
    until(&f, log_line(&f, "0 SEAT_CLEAR", 1) != 0 && m.group->state == EPD_GROUP_REARM);
    assert_true(m.group->seat[0].lease == NULL || m.group->seat[0].lease->clearing);
    assert_int_equal(log_line(&f, "0 SEAT_CLEAR", 2), 0);
    fixture_close(&f);
    epd_close_fd(&c[1].far);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_is_given_back),
        cmocka_unit_test(lease_of_another_session),
        cmocka_unit_test(cleared_once),
    };
    FAKE_MAIN(tests);
}
