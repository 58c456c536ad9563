/* A generation is armed when every engine has said so. */
#include "daemon/core/change.h"

#include "tests/unit/core/fake.h"

static void armed_by_all(void **state)
{
    struct fixture f;
    struct client c[2];
    const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
    (void)state;
    fixture_open(&f, 2, "mute:1:ARM;");
    client_open(&f, &c[0]);
    client_open(&f, &c[1]);
    const struct made m = group_make(&f, &c[0], (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_OK);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(client_lease(&f, &c[rank], m.group->id, rank), EPD_OK);
    epd_change_begin(m.group, &cause, "reset");
    until(&f, log_line(&f, "0 ARM 2 3", 1) != 0 && log_line(&f, "1 ARM 2 3", 1) != 0);
    for (unsigned i = 0; i < 50; i++) { /* shorter than the patience with a silent engine */
        (void)uv_run(&f.loop, UV_RUN_NOWAIT);
        assert_int_equal(m.group->state, EPD_GROUP_ARMING);
        usleep(1000);
    }
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(armed_by_all)};
    FAKE_MAIN(tests);
}
