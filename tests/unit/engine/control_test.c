/* The control channel from the supervisor's side of the socketpair. Groups are stubs. */
#define EPD_LOG_COMPONENT "unit"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/engine/control.h"
#include "daemon/engine/doorbells.h"
#include "daemon/engine/peers.h"
#include "daemon/engine/transport.h"
#include "daemon/ipc/fdpass.h"
#include "daemon/ipc/memfd.h"
#include "proto/version.h"
#include "tests/unit/engine/groups_stub.h"

/* ---- the supervisor ---- */

struct world {
    struct epd_engine engine;
    int sock; /* ours */
    uint64_t seq;
    int fds[8]; /* of the last reply */
    unsigned n_fds;
    union {
        struct epd_msg_reply r;
        struct epd_msg_stats stats;
        struct epd_msg_group_stats group;
        struct epd_msg_epoch epoch;
        char bytes[EPD_MSG_MAX_BYTES];
    } got;
    size_t got_bytes;
};

static unsigned open_fds(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

static void drop_fds(struct world *w)
{
    while (w->n_fds > 0)
        epd_close_fd(&w->fds[--w->n_fds]);
}

/* false: nothing there */
static bool receive(struct world *w)
{
    struct epd_error err;
    drop_fds(w);
    memset(&w->got, 0xee, sizeof(w->got));
    return epd_fd_recv(w->sock, &w->got, sizeof(w->got), &w->got_bytes, w->fds, 8, &w->n_fds,
                       &err) == EPD_OK;
}

static void send_raw(struct world *w, const void *msg, size_t bytes, const int *fds, unsigned n)
{
    assert_int_equal(epd_fd_send(w->sock, msg, bytes, fds, n, NULL), EPD_OK);
    (void)epd_control_poll(&w->engine);
}

/* Fill the header in, send, and take the reply. */
static enum epd_status ask(struct world *w, uint16_t type, void *msg, size_t bytes, int fd)
{
    struct epd_msg_header *h = msg;
    *h = (struct epd_msg_header){.type = type, .bytes = (uint32_t)bytes, .seq = ++w->seq};
    send_raw(w, msg, bytes, &fd, fd >= 0 ? 1 : 0);
    assert_true(receive(w));
    assert_int_equal(w->got.r.h.type, EPD_MSG_REPLY);
    assert_int_equal(w->got.r.h.seq, w->seq);
    assert_int_equal(w->got.r.h.bytes, w->got_bytes);
    assert_int_equal(w->got.r.message[0] != '\0', w->got.r.status != 0);
    return w->got.r.status;
}
#define ASK(w, type, msg) ask(w, type, &(msg), sizeof(msg), -1)

static struct epd_msg_config config(void)
{
    return (struct epd_msg_config){.abi = EPD_ABI_VERSION,
                                   .device = 2,
                                   .incarnation = 9,
                                   .workers = 3,
                                   .spin_us = 11,
                                   .log_level = EPD_LOG_ERROR};
}

static int unconfigured(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    int pair[2];
    memset(&g_stub, 0, sizeof(g_stub));
    epd_log_init(EPD_LOG_ERROR, "unit");
    if (w == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    w->sock = pair[0];
    w->engine.transport = &epd_transport_host;
    *state = w;
    return fcntl(w->sock, F_SETFL, O_NONBLOCK) != 0 ||
           epd_control_create(&w->engine, pair[1], NULL) != EPD_OK ||
           epd_doorbells_create(&w->engine.doorbells, NULL) != EPD_OK ||
           epd_chunks_create(&epd_transport_host, &w->engine.chunks, NULL) != EPD_OK ||
           epd_workers_create(1, &w->engine.workers, NULL) != EPD_OK;
}

static int configured(void **state)
{
    if (unconfigured(state) != 0)
        return -1;
    struct world *w = *state;
    struct epd_msg_config msg = config();
    msg.h = (struct epd_msg_header){.type = EPD_MSG_CONFIG, .bytes = sizeof(msg), .seq = ++w->seq};
    return epd_fd_send(w->sock, &msg, sizeof(msg), NULL, 0, NULL) != EPD_OK ||
           epd_control_wait_config(&w->engine, 1000, NULL) != EPD_OK || !receive(w) ||
           w->got.r.status != EPD_OK;
}

static int teardown(void **state)
{
    struct world *w = *state;
    drop_fds(w);
    epd_workers_destroy(w->engine.workers);
    epd_chunks_destroy(w->engine.chunks);
    epd_doorbells_destroy(w->engine.doorbells);
    epd_peers_destroy(w->engine.peers);
    epd_memfd_unmap(w->engine.status, EPD_STATUS_PAGE_BYTES);
    epd_control_destroy(&w->engine);
    epd_control_destroy(&w->engine);
    epd_close_fd(&w->sock);
    free(w);
    return 0;
}

/* ---- tests ---- */

static void bad_config_names_the_field(void **state)
{
    struct world *w = *state;
    struct epd_msg_config msg = config();
    msg.abi++;
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EVERSION);
    assert_non_null(strstr(w->got.r.message, "ABI"));
    msg = config();
    msg.device = EPD_MAX_DEVICES;
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EINVAL);
    assert_non_null(strstr(w->got.r.message, "device is 16"));
    msg = config();
    msg.workers = 65;
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EINVAL);
    assert_non_null(strstr(w->got.r.message, "workers is 65"));
    msg.workers = 0;
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EINVAL);
    msg = config();
    msg.log_level = 4;
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EINVAL);
    assert_non_null(strstr(w->got.r.message, "log_level is 4"));
    assert_int_equal(epd_control_state(&w->engine), EPD_CONTROL_OPEN);
    msg = config();
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_OK);
    assert_int_equal(ASK(w, EPD_MSG_CONFIG, msg), EPD_EINVAL);
    assert_non_null(strstr(w->got.r.message, "twice"));
}

static void config_gives_three_descriptors(void **state)
{
    struct world *w = *state;
    void *page = NULL, *bells = NULL;
    assert_int_equal(w->n_fds, 3);
    assert_int_equal(epd_memfd_map(w->fds[0], EPD_STATUS_PAGE_BYTES, false, &page, NULL), EPD_OK);
    const struct epd_status_page *s = page;
    assert_true(s->magic == EPD_STATUS_MAGIC);
    assert_int_equal(s->abi, EPD_ABI_VERSION);
    assert_int_equal(s->device, 2);
    assert_int_equal(s->incarnation, 9);
    assert_int_equal(s->pid, getpid());
    assert_int_equal(s->state, EPD_ENGINE_RUNNING);
    /* sealed by the supervisor once it has its own mapping; the engine's goes on writing */
    assert_int_equal(epd_memfd_seal_future_write(w->fds[0], NULL), EPD_OK);
    w->engine.status->ops = 4;
    assert_int_equal(s->ops, 4);
    assert_int_equal(eventfd_write(w->fds[1], 1), 0);
    assert_int_equal(epd_memfd_map(w->fds[2], EPD_BELL_BYTES, true, &bells, NULL), EPD_OK);
    assert_int_equal(epd_control_workers(&w->engine), 3);
    assert_int_equal(epd_control_spin_us(&w->engine), 11);
    epd_memfd_unmap(page, EPD_STATUS_PAGE_BYTES);
    epd_memfd_unmap(bells, EPD_BELL_BYTES);
}

/* What no supervisor of this build would send ends the engine, without an answer. */
static void check_broken(struct world *w, const struct epd_msg_header *h, size_t bytes,
                         unsigned n_fds)
{
    char buf[EPD_MSG_MAX_BYTES] = {0};
    int fds[4] = {w->sock, w->sock, w->sock, w->sock};
    drop_fds(w);
    const unsigned before = open_fds();
    memcpy(buf, h, bytes < sizeof(*h) ? bytes : sizeof(*h));
    send_raw(w, buf, bytes, fds, n_fds);
    assert_int_equal(epd_control_state(&w->engine), EPD_CONTROL_BROKEN);
    assert_false(receive(w));
    assert_int_equal(open_fds(), before);
}

static void malformed_messages_break_the_channel(void **state)
{
    static const struct {
        struct epd_msg_header h;
        size_t bytes;
        unsigned n_fds;
    } cases[] = {
        {{.type = EPD_MSG_PING, .bytes = 16, .seq = 1}, 8, 0},
        {{.type = EPD_MSG_PING, .bytes = 24, .seq = 1}, 16, 0},
        {{.type = EPD_MSG_PING, .bytes = 24, .seq = 1}, 24, 0},
        {{.type = EPD_MSG_PING, .bytes = 16, .seq = 0}, 16, 0},
        {{.type = EPD_MSG_PING, .bytes = 16, .seq = 1}, 16, 1},
        {{.type = EPD_MSG_PING, .bytes = 16, .seq = 1}, 16, 4},
        {{.type = 0, .bytes = 16, .seq = 1}, 16, 0},
        {{.type = EPD_MSG_GROUP_STATS + 1, .bytes = 16, .seq = 1}, 16, 0},
        {{.type = EPD_MSG_REPLY, .bytes = 16, .seq = 1}, 16, 0},
        {{.type = UINT16_MAX, .bytes = 16, .seq = 1}, 16, 0},
        {{.type = EPD_MSG_CHUNK_ADOPT, .bytes = sizeof(struct epd_msg_chunk), .seq = 1},
         sizeof(struct epd_msg_chunk),
         0},
        {{.type = EPD_MSG_SEAT_SET, .bytes = sizeof(struct epd_msg_seat), .seq = 1},
         sizeof(struct epd_msg_seat),
         2},
    };
    (void)state;
    for (unsigned i = 0; i < EPD_ARRAY_LEN(cases); i++) {
        void *each;
        assert_int_equal(configured(&each), 0);
        check_broken(each, &cases[i].h, cases[i].bytes, cases[i].n_fds);
        (void)teardown(&each);
    }
}

static void nothing_before_config(void **state)
{
    struct epd_msg_header h = {.type = EPD_MSG_PING, .bytes = sizeof(h), .seq = 1};
    check_broken(*state, &h, sizeof(h), 0);
}

static void waiting_for_config_ends(void **state)
{
    struct world *w = *state;
    struct epd_error err;
    assert_int_equal(epd_control_wait_config(&w->engine, 1, &err), EPD_ETIMEDOUT);
    epd_close_fd(&w->sock);
    assert_int_equal(epd_control_wait_config(&w->engine, 1000, &err), EPD_ESESSIONLOST);
}

static void chunks_are_made_adopted_and_dropped(void **state)
{
    struct world *w = *state;
    struct epd_msg_chunk msg = {.chunk = 4, .bytes = 4096, .kind = EPD_CHUNK_RINGS, .device = 2};
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_CREATE, msg), EPD_OK);
    assert_int_equal(w->n_fds, 1);
    int fd = dup(w->fds[0]);
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_CREATE, msg), EPD_EEXIST);
    assert_int_equal(w->n_fds, 0);
    msg.chunk = 5;
    const unsigned before = open_fds();
    assert_int_equal(ask(w, EPD_MSG_CHUNK_ADOPT, &msg, sizeof(msg), fd), EPD_OK);
    assert_int_equal(open_fds(), before);
    epd_chunks_find(w->engine.chunks, 4)->base[9] = 1;
    assert_int_equal(epd_chunks_find(w->engine.chunks, 5)->base[9], 1);
    g_stub.busy_chunk = 5;
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_DROP, msg), EPD_EBUSY);
    assert_non_null(strstr(w->got.r.message, "chunk 5"));
    g_stub.busy_chunk = 0;
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_DROP, msg), EPD_OK);
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_DROP, msg), EPD_ENOENT);
    epd_close_fd(&fd);
}

static bool rings(struct world *w, int client)
{
    (void)eventfd_write(client, 1);
    const uint64_t before = epd_now_ns();
    epd_doorbells_sleep(w->engine.doorbells, 2000000);
    return epd_now_ns() - before < 2000000;
}

static void a_seat_has_a_doorbell_as_long_as_it_lives(void **state)
{
    struct world *w = *state;
    int client = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), file = open("/proc/self/exe", O_RDONLY);
    struct epd_msg_seat set = {.group = 8, .rank = 1};
    struct epd_msg_epoch clear = {.group = 8, .rank = 1};
    drop_fds(w);
    const unsigned before = open_fds();
    g_stub.answer = EPD_EINVAL;
    assert_int_equal(ask(w, EPD_MSG_SEAT_SET, &set, sizeof(set), client), EPD_EINVAL);
    assert_string_equal(w->got.r.message, "stub seat_set");
    assert_false(rings(w, client));
    g_stub.answer = EPD_OK;
    /* what cannot be polled is no doorbell, and the seat is gone again */
    assert_int_equal(ask(w, EPD_MSG_SEAT_SET, &set, sizeof(set), file), EPD_ESYS);
    assert_int_equal(g_stub.clears, 1);
    assert_int_equal(g_stub.group, 8);
    assert_int_equal(g_stub.rank, 1);
    assert_int_equal(ask(w, EPD_MSG_SEAT_SET, &set, sizeof(set), client), EPD_OK);
    assert_true(rings(w, client));
    assert_int_equal(ASK(w, EPD_MSG_SEAT_CLEAR, clear), EPD_OK);
    assert_false(rings(w, client));
    assert_int_equal(ask(w, EPD_MSG_SEAT_SET, &set, sizeof(set), client), EPD_OK);
    assert_int_equal(ASK(w, EPD_MSG_GROUP_DROP, clear), EPD_OK);
    assert_string_equal(g_stub.call, "drop");
    assert_false(rings(w, client));
    assert_int_equal(open_fds(), before);
    epd_close_fd(&client);
    epd_close_fd(&file);
}

static void peers_come_and_go(void **state)
{
    struct world *w = *state;
    int own[3] = {dup(w->fds[0]), dup(w->fds[1]), dup(w->fds[2])};
    struct epd_msg_peer msg = {.device = 0};
    msg.h = (struct epd_msg_header){.type = EPD_MSG_PEER, .bytes = sizeof(msg), .seq = ++w->seq};
    send_raw(w, &msg, sizeof(msg), own, 3);
    assert_true(receive(w));
    assert_int_equal(w->got.r.status, EPD_OK);
    msg.device = 2; /* itself */
    msg.h.seq = ++w->seq;
    send_raw(w, &msg, sizeof(msg), own, 3);
    assert_true(receive(w));
    assert_int_equal(w->got.r.status, EPD_EINVAL);
    msg.device = EPD_MAX_DEVICES;
    assert_int_equal(ASK(w, EPD_MSG_PEER_GONE, msg), EPD_EINVAL);
    msg.device = 0;
    assert_int_equal(ASK(w, EPD_MSG_PEER_GONE, msg), EPD_OK);
    for (unsigned i = 0; i < 3; i++)
        epd_close_fd(&own[i]);
}

static void requests_reach_the_groups(void **state)
{
    struct world *w = *state;
    static const struct {
        uint16_t type;
        size_t bytes;
        const char *call;
    } cases[] = {
        {EPD_MSG_GROUP_SET, sizeof(struct epd_msg_group), "set"},
        {EPD_MSG_GROUP_DROP, sizeof(struct epd_msg_epoch), "drop"},
        {EPD_MSG_SEAT_CLEAR, sizeof(struct epd_msg_epoch), "seat_clear"},
        {EPD_MSG_DESC_SET, sizeof(struct epd_msg_desc), "desc_set"},
        {EPD_MSG_DESC_CLEAR, sizeof(struct epd_msg_desc), "desc_clear"},
        {EPD_MSG_FAIL, sizeof(struct epd_msg_epoch), "fail"},
        {EPD_MSG_GENERATION, sizeof(struct epd_msg_epoch), "generation"},
        {EPD_MSG_ARM, sizeof(struct epd_msg_epoch), "arm"},
        {EPD_MSG_GROUP_STATS, sizeof(struct epd_msg_epoch), "stats"},
    };
    for (unsigned i = 0; i < EPD_ARRAY_LEN(cases); i++) {
        uint64_t buf[EPD_MSG_MAX_BYTES / 8] = {0};
        buf[2] = 100 + i; /* the group's id follows the header in all of them */
        g_stub.answer = EPD_OK;
        assert_int_equal(ask(w, cases[i].type, buf, cases[i].bytes, -1), EPD_OK);
        assert_string_equal(g_stub.call, cases[i].call);
        assert_int_equal(g_stub.group, 100 + i);
        g_stub.answer = EPD_EBUSY;
        assert_int_equal(ask(w, cases[i].type, buf, cases[i].bytes, -1), EPD_EBUSY);
        assert_int_equal(w->got_bytes, sizeof(struct epd_msg_reply));
        assert_non_null(strstr(w->got.r.message, cases[i].call));
    }
}

static void revoke_is_answered_when_drained(void **state)
{
    struct world *w = *state;
    struct epd_msg_epoch msg = {.group = 1};
    msg.h = (struct epd_msg_header){.type = EPD_MSG_REVOKE, .bytes = sizeof(msg), .seq = 50};
    send_raw(w, &msg, sizeof(msg), NULL, 0);
    assert_false(receive(w));
    assert_int_equal(g_stub.revoke_seq, 50);
    epd_control_reply(&w->engine, 50, NULL);
    assert_true(receive(w));
    assert_int_equal(w->got.r.h.seq, 50);
    assert_int_equal(w->got.r.status, EPD_OK);
    g_stub.answer = EPD_ENOENT; /* refused: at once */
    assert_int_equal(ASK(w, EPD_MSG_REVOKE, msg), EPD_ENOENT);
}

static void ping_and_stats_carry_numbers(void **state)
{
    struct world *w = *state;
    struct epd_msg_header ping;
    struct epd_msg_chunk chunk = {.chunk = 4, .bytes = 8192, .kind = EPD_CHUNK_RINGS, .device = 2};
    struct epd_msg_epoch epoch = {.group = 1};
    assert_int_equal(ASK(w, EPD_MSG_CHUNK_CREATE, chunk), EPD_OK);
    w->engine.ops = 12;
    w->engine.status->wakeups = 34;
    assert_int_equal(ASK(w, EPD_MSG_PING, ping), EPD_OK);
    assert_int_equal(w->got_bytes, sizeof(struct epd_msg_stats));
    assert_int_equal(w->got.stats.ops, 12);
    assert_int_equal(w->got.stats.wakeups, 34);
    assert_int_equal(w->got.stats.chunks, 1);
    assert_int_equal(w->got.stats.chunk_bytes, 8192);
    assert_int_equal(w->got.stats.groups, 3);
    assert_int_equal(w->got.stats.seats, 5);
    assert_in_range(w->got.stats.rss_bytes, 100000, UINT64_C(1) << 44);
    assert_int_equal(ASK(w, EPD_MSG_GROUP_STATS, epoch), EPD_OK);
    assert_int_equal(w->got_bytes, sizeof(struct epd_msg_group_stats));
    assert_int_equal(w->got.group.seat[2].ops, 77);
}

static void reports_carry_no_sequence_number(void **state)
{
    struct world *w = *state;
    struct epd_msg_epoch msg = {.group = 6, .epoch = 3, .rank = 2};
    msg.h.seq = 99;
    epd_control_report(&w->engine, &msg);
    assert_true(receive(w));
    assert_int_equal(w->got.epoch.h.type, EPD_MSG_EPOCH_FAILED);
    assert_int_equal(w->got.epoch.h.seq, 0);
    assert_int_equal(w->got.epoch.h.bytes, sizeof(msg));
    assert_int_equal(w->got.epoch.rank, 2);
}

static void stop_poisons_and_is_answered(void **state)
{
    struct world *w = *state;
    struct epd_msg_header stop;
    assert_int_equal(ASK(w, EPD_MSG_STOP, stop), EPD_OK);
    assert_int_equal(g_stub.poison, EPD_EDAEMONLOST);
    assert_int_equal(epd_control_state(&w->engine), EPD_CONTROL_STOP);
}

static void end_of_the_socket_is_the_supervisors_death(void **state)
{
    struct world *w = *state;
    assert_false(epd_control_poll(&w->engine));
    epd_close_fd(&w->sock);
    (void)epd_control_poll(&w->engine);
    assert_int_equal(epd_control_state(&w->engine), EPD_CONTROL_LOST);
    epd_control_reply(&w->engine, 1, NULL); /* harmless */
}

#define TEST(name, setup) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bad_config_names_the_field, unconfigured),
        TEST(config_gives_three_descriptors, configured),
        cmocka_unit_test(malformed_messages_break_the_channel),
        TEST(nothing_before_config, unconfigured),
        TEST(waiting_for_config_ends, unconfigured),
        TEST(chunks_are_made_adopted_and_dropped, configured),
        TEST(a_seat_has_a_doorbell_as_long_as_it_lives, configured),
        TEST(peers_come_and_go, configured),
        TEST(requests_reach_the_groups, configured),
        TEST(revoke_is_answered_when_drained, configured),
        TEST(ping_and_stats_carry_numbers, configured),
        TEST(reports_carry_no_sequence_number, configured),
        TEST(stop_poisons_and_is_answered, configured),
        TEST(end_of_the_socket_is_the_supervisors_death, configured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
