/* test-timeout: 60 */
/* Groups that may run with seats nobody leases: selections of their experts count as -1, nobody
 * waits for them, and a seat that is taken or given back changes the generation for all. */
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/epd.h"
#include "client/epdctl/oracle.h"

SUITE_DAEMON(.devices = 2)

enum { R = 3, E = 6, K = 3, B = 5, H = 8, L = E / R };
static const struct oracle_shape g_all = {
    .ranks = R, .experts = E, .topk = K, .hidden = H, .dtype = ORACLE_FP32};

struct rank {
    struct epd_lease *lease;
    struct epd_buffer *buffer;
    struct epd_op *dispatch, *combine;
    struct mem {
        float x[B][H];
        int64_t ids[B][K];
        float weights[B][K];
        float recv[L * R * B][H] __attribute__((aligned(16)));
        int32_t counts[L];
        int32_t src[L * R * B];
        float out[B][H] __attribute__((aligned(16)));
    } * m;
};

#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, err.message);            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
static struct epd_error err;

#define ARRAY(r, member)                                                                           \
    (struct epd_array)                                                                             \
    {                                                                                              \
        .buffer = (r)->buffer, .offset = offsetof(struct mem, member),                             \
        .bytes = sizeof(((struct mem *)0)->member)                                                 \
    }

static void take_seat(struct epd *epd, uint64_t group, uint32_t rank, struct rank *r)
{
    struct epd_dispatch_config d = EPD_DISPATCH_CONFIG_INIT;
    struct epd_combine_config c = EPD_COMBINE_CONFIG_INIT;
    REQUIRE(epd_lease_acquire(epd, group, rank, NULL, &r->lease, &err) == EPD_OK);
    REQUIRE(epd_buffer_alloc(epd, epd_lease_device(r->lease), sizeof(struct mem), &r->buffer,
                             &err) == EPD_OK);
    r->m = epd_buffer_ptr(r->buffer);
    d.x = ARRAY(r, x);
    d.ids = ARRAY(r, ids);
    d.recv = ARRAY(r, recv);
    d.counts = ARRAY(r, counts);
    d.src = ARRAY(r, src);
    c.rows = ARRAY(r, recv);
    c.weights = ARRAY(r, weights);
    c.out = ARRAY(r, out);
    REQUIRE(epd_dispatch_bind(r->lease, &d, &r->dispatch, &err) == EPD_OK);
    REQUIRE(epd_combine_bind(r->lease, &c, &r->combine, &err) == EPD_OK);
}

static void fill(struct rank *r, uint32_t rank, uint32_t round)
{
    for (uint32_t t = 0; t < B; t++) {
        for (uint32_t h = 0; h < H; h++)
            r->m->x[t][h] = (float)(100 * rank + 10 * t + h + round);
        for (uint32_t k = 0; k < K; k++) {
            r->m->ids[t][k] = (int64_t)((rank + 2 * t + k * (round + 1)) % E);
            r->m->weights[t][k] = 0.25f * (float)(k + 1);
        }
    }
    memset(r->m->recv, 0, sizeof(r->m->recv));
}

static void wait_ok(struct rank *r, const struct epd_ticket *ticket)
{
    struct epd_result result;
    char text[256];
    REQUIRE(epd_wait_ticket(r->lease, ticket->ticket, 20000000000, &result) == EPD_OK);
    if (result.status != EPD_OK)
        (void)snprintf(err.message, sizeof(err.message), "%s",
                       epd_result_describe(&result, text, sizeof(text)));
    REQUIRE(result.status == EPD_OK);
}

/* One dispatch and combine of the ranks of `mask`; everything compared with the oracle. */
static void run(struct rank *ranks, uint64_t mask, uint32_t round)
{
    struct oracle_shape shape = g_all;
    struct oracle_input in[R] = {{0}};
    struct oracle_output want;
    struct epd_ticket ticket[R];
    shape.absent = ~mask & ((1u << R) - 1);
    for (uint32_t r = 0; r < R; r++) {
        struct epd_submit submit = EPD_SUBMIT_INIT;
        if ((mask >> r & 1) == 0)
            continue;
        fill(&ranks[r], r, round);
        submit.b = B - r % 2;
        in[r] = (struct oracle_input){submit.b, &ranks[r].m->ids[0][0], &ranks[r].m->weights[0][0],
                                      ranks[r].m->x};
        REQUIRE(epd_dispatch(ranks[r].dispatch, &submit, &ticket[r]) == EPD_OK);
    }
    for (uint32_t r = 0; r < R; r++)
        if ((mask >> r & 1) != 0)
            wait_ok(&ranks[r], &ticket[r]);
    for (uint32_t r = 0; r < R; r++) {
        if ((mask >> r & 1) == 0)
            continue;
        REQUIRE(oracle_expect(&shape, in, oracle_scale_expert, r, &want));
        for (uint32_t i = 0; i < want.rows; i++) {
            const uint32_t row = (want.expert[i] - r * L) * R * B + want.index[i];
            REQUIRE(memcmp(ranks[r].m->recv[row], want.recv + i * sizeof(float) * H,
                           sizeof(float) * H) == 0);
            REQUIRE(ranks[r].m->src[row] == (int32_t)want.src[2 * i + 1]);
            oracle_scale_expert(&shape, want.expert[i], ranks[r].m->recv[row],
                                ranks[r].m->recv[row]);
        }
        oracle_output_free(&want);
    }
    for (uint32_t r = 0; r < R; r++) {
        struct epd_submit submit = EPD_SUBMIT_INIT;
        submit.epoch = (mask >> r & 1) != 0 ? ticket[r].epoch : 0;
        if ((mask >> r & 1) != 0)
            REQUIRE(epd_combine(ranks[r].combine, &submit, &ticket[r]) == EPD_OK);
    }
    for (uint32_t r = 0; r < R; r++) {
        if ((mask >> r & 1) == 0)
            continue;
        wait_ok(&ranks[r], &ticket[r]);
        REQUIRE(oracle_expect(&shape, in, oracle_scale_expert, r, &want));
        REQUIRE(memcmp(ranks[r].m->out, want.combined, in[r].b * sizeof(float) * H) == 0);
        oracle_output_free(&want);
    }
}

static void client(void)
{
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd_group_config config = EPD_GROUP_CONFIG_INIT;
    struct epd_group_info group = EPD_GROUP_INFO_INIT;
    static const uint32_t placement[R] = {0, 1, 0};
    struct rank ranks[R] = {{0}};
    struct epd *epd;
    options.socket = g_daemon.socket;
    options.timeout_ns = 20000000000;
    REQUIRE(epd_open(&options, &epd, &err) == EPD_OK);
    config.name = "absent";
    config.ranks = R;
    config.experts = E;
    config.max_tokens = B;
    config.topk = K;
    config.hidden = H;
    config.dtype = EPD_FP32;
    config.timeout_ms = config.first_timeout_ms = 15000;
    config.allow_absent = 1;
    config.ephemeral = 1;
    config.placement = placement;
    REQUIRE(epd_group_create(epd, &config, &group, &err) == EPD_OK);
    take_seat(epd, group.id, 0, &ranks[0]);
    run(ranks, 1, 0); /* alone */
    take_seat(epd, group.id, 2, &ranks[2]);
    REQUIRE(epd_rearm(ranks[0].lease, &err) == EPD_OK);
    run(ranks, 5, 1);
    run(ranks, 5, 2);
    take_seat(epd, group.id, 1, &ranks[1]);
    REQUIRE(epd_rearm(ranks[0].lease, &err) == EPD_OK);
    REQUIRE(epd_rearm(ranks[2].lease, &err) == EPD_OK);
    run(ranks, 7, 3);
    epd_lease_release(ranks[0].lease);
    REQUIRE(epd_rearm(ranks[1].lease, &err) == EPD_OK);
    REQUIRE(epd_rearm(ranks[2].lease, &err) == EPD_OK);
    run(ranks, 6, 4);
    epd_close(epd);
}

static void absent_seats(void **state)
{
    (void)state;
    int code = 0;
    const pid_t pid = fork(); /* gRPC lives in the child alone */
    if (pid == 0) {
        client();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SUITE_TEST(absent_seats)};
    return cmocka_run_group_tests_name("absent", tests, suite_setup, suite_teardown);
}
