/* test-timeout: 60 */
/* Bad input: each yields one typed error that names the field, consumes nothing, and disturbs
 * nobody; the corrected submission of the same epoch succeeds for all. */
#include "tests/support/suite.h"

#include <string.h>

#include "proto/ring.h"
#include "tests/support/agent_internal.h"

SUITE_DAEMON(.devices = 2, .workers = 1)

/* ---- expert ids ------------------------------------------------------------------------- */

static void refused_id(struct cluster *c, uint32_t step, uint32_t at, int64_t id)
{
    const struct seat_twist twist = {.bad_id_set = 1, .bad_at = at, .bad_id = id};
    struct agent_reply sent = agent_dispatch_twisted(&c->a[0], 0, step, &twist);
    struct epd_result r = agent_wait_status(&c->a[0], 0, EPD_EROUTING);
    check_int(r.field, EPD_FIELD_IDS, "field");
    check_int(r.value, (uint64_t)at << 32 | (uint32_t)id, "value");
    check_int(r.phase, EPD_PHASE_VALIDATE, "phase");
    check_int(r.epoch_consumed, 0, "epoch_consumed");
    check_int(r.epoch, sent.v[1], "epoch");
}

static void bad_ids(uint32_t layout, uint32_t ids_type)
{
    struct cluster c;
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){
                     .devices = 2, .layout = layout, .ids_type = ids_type, .b_pattern = B_FULL});
    const int64_t E = c.spec.shape.experts;
    const uint32_t last = c.spec.shape.max_tokens * c.spec.shape.topk - 1;
    cluster_step(&c, 0);
    /* The peer's dispatch of the same epoch is in flight all the while. */
    uint64_t epoch = agent_dispatch(&c.a[1], 0, 1).v[1];
    refused_id(&c, 1, 0, E);
    refused_id(&c, 1, last, -2);
    refused_id(&c, 1, 5, INT32_MAX);
    refused_id(&c, 1, 7, INT32_MIN);
    if (ids_type == EPD_IDS_INT64) {
        refused_id(&c, 1, 3, (int64_t)1 << 32);       /* low half is a good id */
        refused_id(&c, 1, 3, ((int64_t)1 << 33) - 1); /* low half is -1 */
        refused_id(&c, 1, 3, INT64_MIN);
    }
    check_int(agent_dispatch(&c.a[0], 0, 1).v[1], epoch, "epoch of the corrected dispatch");
    agent_wait_good(&c.a[0], 0);
    agent_wait_good(&c.a[1], 0);
    (void)agent_combine(&c.a[0], 0, epoch);
    (void)agent_combine(&c.a[1], 0, epoch);
    agent_wait_good(&c.a[0], 0);
    agent_wait_good(&c.a[1], 0);
    cluster_run(&c, RUN_PLAIN, 2, 3);
    cluster_close(&c);
}

static void bad_ids_expert_major(void **state)
{
    (void)state;
    bad_ids(EPD_LAYOUT_EXPERT_MAJOR, EPD_IDS_INT64);
}

static void bad_ids_rank_major(void **state)
{
    (void)state;
    bad_ids(EPD_LAYOUT_RANK_MAJOR, EPD_IDS_INT32);
}

/* A bad id in the first of two queued dispatches: the second one ends as out of order. */
static void bad_id_then_queued(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.devices = 2, .b_pattern = B_FULL});
    const struct seat_twist twist = {.bad_id_set = 1, .bad_at = 2, .bad_id = 1 << 20};
    (void)agent_dispatch_twisted(&c.a[0], 0, 0, &twist);
    (void)agent_dispatch(&c.a[0], 0, 1);
    (void)agent_wait_status(&c.a[0], 0, EPD_EROUTING);
    struct epd_result r = agent_wait_status(&c.a[0], 0, EPD_EORDER);
    check_int(r.epoch_consumed, 0, "epoch_consumed");
    check_int(r.value, 0, "expected epoch");
    cluster_run(&c, RUN_TWO, 0, 4);
    cluster_close(&c);
}

/* ---- fields of an entry ----------------------------------------------------------------- */

struct bad_field {
    uint32_t kind, flags, b;
    uint64_t b_offset, notify_offset, in_row, out_row, epoch, set;
    uint32_t field;
};

/* Submit as told (the good parts from the current turn), wait, report field and value. */
static AGENT_COMMAND(cmd_bad_field)
{
    struct seat *s = st->seat[cmd->slot];
    struct bad_field f;
    memcpy(&f, cmd->u.text, sizeof(f));
    struct epd_submit submit = EPD_SUBMIT_INIT;
    submit.b = f.b;
    submit.flags = f.flags;
    submit.b_offset = f.b_offset;
    submit.notify_offset = f.notify_offset;
    submit.in_row = f.in_row;
    submit.out_row = f.out_row;
    submit.epoch = f.epoch;
    submit.set = f.set;
    /* b of an indirect submission is the first control word. */
    const uint32_t huge = s->c.w.shape.max_tokens + 1;
    image_write(&s->in, s->control, &huge, sizeof(huge));
    reply->status = f.kind == EPD_OP_DISPATCH ? epd_dispatch(s->dispatch, &submit, NULL)
                                              : epd_combine(s->combine, &submit, NULL);
    if (reply->status == EPD_OK)
        reply->status = epd_wait(s->lease, (int64_t)slow_ms(5000) * 1000000, &reply->result);
}

static void refused_field(struct cluster *c, const struct bad_field *f, enum epd_status status,
                          uint64_t value)
{
    struct agent_cmd cmd = {.fn = cmd_bad_field};
    memcpy(cmd.u.text, f, sizeof(*f));
    struct agent_reply r = agent_call(&c->a[0], &cmd);
    check_true(r.status == EPD_OK, "field %u: submit or wait: %s", f->field,
               epd_status_string(r.status));
    check_true(r.result.status == status, "field %u: completion is %s", f->field,
               epd_status_string(r.result.status));
    check_int(r.result.field, f->field, "field");
    check_int(r.result.value, value, "value");
    check_int(r.result.epoch_consumed, 0, "epoch_consumed");
}

static void bad_fields(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.devices = 2, .flags = SEAT_B_INDIRECT});
    const uint64_t far = (uint64_t)1 << 40, B = c.spec.shape.max_tokens;
    const struct {
        struct bad_field f;
        uint64_t value;
    } dispatches[] = {
        {{.flags = EPD_SUBMIT_B_INDIRECT, .field = EPD_FIELD_B}, B + 1},
        {{.flags = EPD_SUBMIT_B_INDIRECT, .b_offset = far, .field = EPD_FIELD_B_OFFSET}, far},
        {{.flags = EPD_SUBMIT_B_INDIRECT, .b_offset = 2, .field = EPD_FIELD_B_OFFSET}, 2},
        {{.flags = EPD_SUBMIT_NOTIFY, .notify_offset = far, .field = EPD_FIELD_NOTIFY_OFFSET}, far},
        {{.flags = EPD_SUBMIT_NOTIFY, .notify_offset = 12, .field = EPD_FIELD_NOTIFY_OFFSET}, 12},
        {{.flags = EPD_SUBMIT_NOTIFY,
          .notify_offset = UINT64_MAX - 7,
          .field = EPD_FIELD_NOTIFY_OFFSET},
         UINT64_MAX - 7},
        {{.b = 1, .in_row = far, .field = EPD_FIELD_IN_ROW}, far},
        {{.b = 2, .in_row = SEAT_TURNS * B - 1, .field = EPD_FIELD_IN_ROW}, SEAT_TURNS * B - 1},
        {{.b = 1, .in_row = UINT64_MAX, .field = EPD_FIELD_IN_ROW}, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(dispatches) / sizeof(dispatches[0]); i++) {
        struct bad_field f = dispatches[i].f;
        f.kind = EPD_OP_DISPATCH;
        refused_field(&c, &f, EPD_EINVAL, dispatches[i].value);
    }
    /* Combines: of an epoch that is dispatched, with rows that do not exist. */
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_dispatch(&c.a[r], 0, 0);
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    struct bad_field f = {.kind = EPD_OP_COMBINE, .b = 0, .in_row = far, .field = EPD_FIELD_IN_ROW};
    refused_field(&c, &f, EPD_EINVAL, far);
    f = (struct bad_field){.kind = EPD_OP_COMBINE, .out_row = far, .field = EPD_FIELD_OUT_ROW};
    refused_field(&c, &f, EPD_EINVAL, far);
    for (uint32_t r = 0; r < 2; r++)
        (void)agent_combine(&c.a[r], 0, 0);
    for (uint32_t r = 0; r < 2; r++)
        agent_wait_good(&c.a[r], 0);
    /* That epoch is combined now: a second combine is out of order. */
    f = (struct bad_field){.kind = EPD_OP_COMBINE, .field = EPD_FIELD_EPOCH};
    refused_field(&c, &f, EPD_EORDER, 0);
    cluster_run(&c, RUN_PLAIN, 1, 3);
    cluster_close(&c);
}

/* ---- flow ------------------------------------------------------------------------------- */

static void third_unreleased(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.devices = 2, .sets = 3});
    for (uint32_t step = 0; step < 2; step++) {
        (void)agent_dispatch(&c.a[0], 0, step);
        (void)agent_dispatch(&c.a[1], 0, step);
        agent_wait_good(&c.a[0], 0);
        agent_wait_good(&c.a[1], 0);
    }
    check_int(agent_dispatch(&c.a[0], 0, 2).v[1], 2, "epoch of the third dispatch");
    struct epd_result r = agent_wait_status(&c.a[0], 0, EPD_EUNRELEASED);
    check_int(r.epoch_consumed, 0, "epoch_consumed");
    /* A release of an older one in front of it in the ring is enough. */
    for (uint32_t i = 0; i < 2; i++) {
        (void)agent_release(&c.a[i], 0, 0);
        check_int(agent_dispatch(&c.a[i], 0, 2).v[1], 2, "epoch after a release");
    }
    for (uint32_t i = 0; i < 2; i++) {
        agent_wait_good(&c.a[i], 0); /* the release */
        agent_wait_good(&c.a[i], 0); /* dispatch 2 */
    }
    for (uint64_t epoch = 1; epoch < 3; epoch++) {
        (void)agent_combine(&c.a[0], 0, epoch);
        (void)agent_combine(&c.a[1], 0, epoch);
        agent_wait_good(&c.a[0], 0);
        agent_wait_good(&c.a[1], 0);
    }
    agent_quiet(&c.a[0], 0);
    agent_quiet(&c.a[1], 0);
    cluster_run(&c, RUN_DEPTH2, 3, 5);
    cluster_close(&c);
}

/* Ranks 0 and 1 combine epoch 0 and dispatch epoch 1 into the memory that epoch 0's rows are in;
 * rank 2 combines epoch 0 much later: nothing may be written before it has read. */
static void held_while_peers_read(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon,
                 &(struct cluster_spec){.ranks = 3,
                                        .devices = 2,
                                        .layout = EPD_LAYOUT_RANK_MAJOR,
                                        .sets = 1,
                                        .flags = SEAT_IN_PLACE,
                                        .b_pattern = B_FULL});
    for (uint32_t r = 0; r < 3; r++)
        (void)agent_dispatch(&c.a[r], 0, 0);
    for (uint32_t r = 0; r < 3; r++)
        agent_wait_good(&c.a[r], 0);
    for (uint32_t r = 0; r < 3; r++) {
        if (r == 2)
            sleep_ms(100);
        (void)agent_combine(&c.a[r], 0, 0);
        (void)agent_dispatch(&c.a[r], 0, 1);
    }
    for (uint32_t n = 0; n < 2; n++) /* combine 0, dispatch 1 */
        for (uint32_t r = 0; r < 3; r++)
            agent_wait_good(&c.a[r], 0);
    for (uint32_t r = 0; r < 3; r++)
        (void)agent_combine(&c.a[r], 0, 1);
    for (uint32_t r = 0; r < 3; r++)
        agent_wait_good(&c.a[r], 0);
    cluster_run(&c, RUN_PIPELINED, 2, 20);
    cluster_close(&c);
}

static AGENT_COMMAND(cmd_flow)
{
    struct seat *s = st->seat[0];
    struct epd_result r;
    struct epd_submit submit = EPD_SUBMIT_INIT;
    (void)cmd;
    reply->v[0] = (uint64_t)-epd_wait(s->lease, 1000000, &r); /* nothing in flight */
    reply->v[1] = (uint64_t)-epd_poll(s->lease, &r);
    (void)seat_dispatch(s, 0, NULL, NULL); /* the peer does not come */
    uint64_t start = now_ns();
    reply->v[2] = (uint64_t)-epd_wait(s->lease, 30 * 1000000, &r);
    reply->v[3] = (now_ns() - start) / 1000000u;
    for (int i = 1; i < 4; i++) /* fill the ring of 4 with entries that wait */
        (void)epd_dispatch(s->dispatch, &submit, NULL);
    reply->v[4] = (uint64_t)-epd_dispatch(s->dispatch, &submit, NULL);
    reply->v[5] = (uint64_t)-epd_op_unbind(s->dispatch, NULL); /* in flight */
    submit.b = s->c.w.shape.max_tokens + 1;
    reply->v[6] = (uint64_t)-epd_dispatch(s->dispatch, &submit, NULL);
    reply->v[7] = (uint64_t)-epd_wait_ticket(s->lease, 99, 1000000, &r);
}

static void flow_control(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.devices = 1, .depth = 4});
    struct agent_reply r = agent_call(&c.a[0], &(struct agent_cmd){.fn = cmd_flow});
    check_int(r.v[0], -EPD_EINVAL, "wait with nothing in flight");
    check_int(r.v[1], -EPD_EAGAIN, "poll with nothing in flight");
    check_int(r.v[2], -EPD_ETIMEDOUT, "wait that is too short");
    check_true(r.v[3] >= 29 && r.v[3] < (uint64_t)slow_ms(1000), "a wait of 30 ms took %llu ms",
               (unsigned long long)r.v[3]);
    check_int(r.v[4], -EPD_EBUSY, "submission into a full ring");
    check_int(r.v[5], -EPD_EBUSY, "unbind of an op in flight");
    check_int(r.v[6], -EPD_EINVAL, "b above B");
    check_int(r.v[7], -EPD_EINVAL, "wait for a ticket not issued");
    cluster_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(bad_ids_expert_major), SUITE_TEST(bad_ids_rank_major),
        SUITE_TEST(bad_id_then_queued),   SUITE_TEST(bad_fields),
        SUITE_TEST(third_unreleased),     SUITE_TEST(held_while_peers_read),
        SUITE_TEST(flow_control),
    };
    return cmocka_run_group_tests_name("input", tests, suite_setup, suite_teardown);
}
