/* Submission: what an entry holds, flow control, argument checks, epochs and their roll-back. */
#include "tests/unit/client/fake.h"

static void entry_fields(void **state)
{
    (void)state;
    struct fake f;
    struct epd_ticket t;
    struct epd_submit s = EPD_SUBMIT_INIT;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.ticket == 0 && t.epoch == 0);

    s.b = 5;
    s.tag = 42;
    s.flags = EPD_SUBMIT_B_INDIRECT | EPD_SUBMIT_NOTIFY;
    s.in_row = 1;
    s.out_row = 2;
    s.set = 1;
    s.b_offset = 64;
    s.notify_offset = 128;
    s.epoch = 0;
    CHECK(epd_combine(&f.combine, &s, &t) == EPD_OK && t.ticket == 1 && t.epoch == 0);
    const struct epd_entry *e = epd_ring_entry(f.lease.area, 8, 1);
    CHECK(e->abi == EPD_ABI_VERSION && e->kind == EPD_OP_COMBINE && e->seq == 2);
    CHECK(e->flags == (EPD_ENTRY_B_INDIRECT | EPD_ENTRY_NOTIFY) && e->tag == 42 && e->b == 5);
    CHECK(e->desc_index == 4 && e->desc_generation == 8 && e->group_generation == 1);
    CHECK(e->in_row == 1 && e->out_row == 2 && e->set == 1 && e->epoch == 0);
    CHECK(e->b_offset == 64 && e->notify_offset == 128);
    for (unsigned i = 0; i < sizeof(e->reserved) / sizeof(e->reserved[0]); i++)
        CHECK(e->reserved[i] == 0);

    CHECK(epd_release(&f.lease, 0, &t) == EPD_OK && t.ticket == 2);
    CHECK(epd_ring_entry(f.lease.area, 8, 2)->kind == EPD_OP_RELEASE);
    fake_fini(&f);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f, 8);
    struct epd_submit s = EPD_SUBMIT_INIT;
    s.b = 9;
    CHECK(epd_dispatch(&f.dispatch, &s, NULL) == EPD_EINVAL); /* b > B */
    s.b = 8;
    CHECK(epd_dispatch(&f.combine, &s, NULL) == EPD_EINVAL); /* kind */
    CHECK(epd_combine(&f.dispatch, &s, NULL) == EPD_EINVAL);
    CHECK(epd_combine(&f.combine, &s, NULL) == EPD_EINVAL); /* epoch 0 was not dispatched */
    CHECK(epd_release(&f.lease, 0, NULL) == EPD_EINVAL);
    CHECK(epd_dispatch(NULL, &s, NULL) == EPD_EINVAL);
    CHECK(epd_dispatch(&f.dispatch, NULL, NULL) == EPD_EINVAL);
    s.set = 2;
    CHECK(epd_dispatch(&f.dispatch, &s, NULL) == EPD_EINVAL);
    s.set = 0;
    s.flags = EPD_SUBMIT_NOTIFY;
    CHECK(epd_dispatch(&f.dispatch, &s, NULL) == EPD_EINVAL); /* no control array */
    s.flags = 4;
    CHECK(epd_dispatch(&f.dispatch, &s, NULL) == EPD_EINVAL);
    s.flags = 0;
    s.size--;
    CHECK(epd_dispatch(&f.dispatch, &s, NULL) == EPD_EINVAL);
    CHECK(f.lease.submitted == 0 && f.lease.next_epoch == 0);
    fake_fini(&f);
}

static void flow_control(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    CHECK(fake_dispatch(&f, NULL) == EPD_EBUSY);
    CHECK(epd_lease_epoch(&f.lease) == 4);
    fake_post(&f, EPD_OK);
    CHECK(fake_dispatch(&f, NULL) == EPD_EBUSY); /* completed, but not consumed */
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.ticket == 0 && r.epoch == 0);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    CHECK(fake_dispatch(&f, NULL) == EPD_EBUSY);
    fake_fini(&f);
}

static void wraps(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_ticket t;
    fake_init(&f, 4);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK(fake_dispatch(&f, &t) == EPD_OK && t.ticket == i && t.epoch == i);
        if (i % 3 != 2)
            continue;
        for (uint64_t k = i - 2; k <= i; k++) {
            fake_post(&f, EPD_OK);
            CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.ticket == k && r.epoch == k);
        }
        CHECK(epd_poll(&f.lease, &r) == EPD_EAGAIN);
    }
    fake_fini(&f);
}

static void doorbell_only_when_asleep(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK && fake_bells(&f) == 0);
    f.page->sleeping = 1;
    CHECK(fake_dispatch(&f, NULL) == EPD_OK && fake_bells(&f) == 1);
    fake_fini(&f);
}

static void roll_back_one(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_ticket t;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    fake_post(&f, EPD_EROUTING);
    CHECK(epd_lease_epoch(&f.lease) == 1);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_EROUTING && !r.epoch_consumed);
    CHECK(epd_lease_epoch(&f.lease) == 0);
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.epoch == 0 && t.ticket == 1);
    fake_fini(&f);
}

static void consumed_failure_keeps_the_epoch(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    const struct epd_completion c = {.kind = EPD_OP_DISPATCH,
                                     .status = EPD_ERANKLATE,
                                     .rank = 3,
                                     .other_rank = -1,
                                     .flags = EPD_COMPLETION_EPOCH_CONSUMED};
    fake_post_completion(&f, &c);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_ERANKLATE && r.epoch_consumed);
    CHECK(epd_lease_epoch(&f.lease) == 1);
    fake_fini(&f);
}

/* Epochs 0, 1, 2 in flight; 0 is bad, so 1 and 2 complete EORDER. */
static void roll_back_pipelined(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_ticket t;
    fake_init(&f, 8);
    for (int i = 0; i < 3; i++)
        CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    fake_post(&f, EPD_EROUTING);
    fake_post(&f, EPD_EORDER);
    fake_post(&f, EPD_EORDER);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && epd_lease_epoch(&f.lease) == 0);
    /* Submitted again before the other failures are read: those must not count. */
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.epoch == 0);
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.epoch == 1);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_EORDER && r.epoch == 1);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_EORDER && r.epoch == 2);
    CHECK(epd_lease_epoch(&f.lease) == 2);
    /* A failure of the second round does count. */
    fake_post(&f, EPD_OK);
    fake_post(&f, EPD_EINVAL);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_OK);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && epd_lease_epoch(&f.lease) == 1);
    fake_fini(&f);
}

static void order_error_names_the_epoch(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    fake_init(&f, 8);
    f.lease.next_epoch = 9;
    CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    const struct epd_completion c = {.kind = EPD_OP_DISPATCH,
                                     .status = EPD_EORDER,
                                     .epoch = 9,
                                     .value = 4,
                                     .rank = -1,
                                     .other_rank = -1};
    fake_post_completion(&f, &c);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.value == 4);
    CHECK(epd_lease_epoch(&f.lease) == 4);
    fake_fini(&f);
}

static void failed_combine_moves_nothing(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_submit s = EPD_SUBMIT_INIT;
    fake_init(&f, 8);
    CHECK(fake_dispatch(&f, NULL) == EPD_OK && fake_dispatch(&f, NULL) == EPD_OK);
    CHECK(epd_combine(&f.combine, &s, NULL) == EPD_OK);
    fake_post(&f, EPD_OK);
    fake_post(&f, EPD_OK);
    fake_post(&f, EPD_EINVAL);
    for (int i = 0; i < 3; i++)
        CHECK(epd_poll(&f.lease, &r) == EPD_OK);
    CHECK(r.status == EPD_EINVAL && epd_lease_epoch(&f.lease) == 2);
    fake_fini(&f);
}

static void generation_change(void **state)
{
    (void)state;
    struct fake f;
    struct epd_result r;
    struct epd_ticket t;
    fake_init(&f, 8);
    for (int i = 0; i < 3; i++)
        CHECK(fake_dispatch(&f, NULL) == EPD_OK);
    for (int i = 0; i < 3; i++)
        fake_post(&f, EPD_ERANKLOST);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.status == EPD_ERANKLOST);
    CHECK(fake_dispatch(&f, NULL) == EPD_ERANKLOST);
    CHECK(epd_release(&f.lease, 0, NULL) == EPD_ERANKLOST);
    epdc_ring_rearm(&f.lease, 2);
    CHECK(epd_lease_generation(&f.lease) == 2 && epd_lease_epoch(&f.lease) == 0);
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.epoch == 0 && t.ticket == 3);
    /* Completions of the old generation stay readable and change nothing. */
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.ticket == 1 && r.status == EPD_ERANKLOST);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && r.ticket == 2);
    CHECK(fake_dispatch(&f, &t) == EPD_OK && t.epoch == 1);
    /* Another change does count. */
    fake_post(&f, EPD_EENGINERESTARTED);
    CHECK(epd_poll(&f.lease, &r) == EPD_OK && fake_dispatch(&f, NULL) == EPD_EENGINERESTARTED);
    /* Re-arming in the same generation keeps the epoch. */
    uint64_t epoch = epd_lease_epoch(&f.lease);
    epdc_ring_rearm(&f.lease, 2);
    CHECK(epd_lease_epoch(&f.lease) == epoch && fake_dispatch(&f, NULL) == EPD_OK);
    fake_fini(&f);
}

static void lost_session_refuses(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f, 8);
    CHECK(epdc_session_lose(&f.epd, EPD_EDAEMONLOST) == EPD_EDAEMONLOST);
    CHECK(epdc_session_lose(&f.epd, EPD_ESESSIONLOST) == EPD_EDAEMONLOST);
    CHECK(fake_dispatch(&f, NULL) == EPD_EDAEMONLOST);
    fake_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_fields),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(flow_control),
        cmocka_unit_test(wraps),
        cmocka_unit_test(doorbell_only_when_asleep),
        cmocka_unit_test(roll_back_one),
        cmocka_unit_test(consumed_failure_keeps_the_epoch),
        cmocka_unit_test(roll_back_pipelined),
        cmocka_unit_test(order_error_names_the_epoch),
        cmocka_unit_test(failed_combine_moves_nothing),
        cmocka_unit_test(generation_change),
        cmocka_unit_test(lost_session_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
