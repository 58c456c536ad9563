/* Tokens: one caller's, once, for a time, so many. Events: order, replay, the ring's end. */
#include "daemon/core/grant.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/util.h"
#include "daemon/core/events.h"

static const struct epd_peer g_me = {.uid = 1000, .gid = 1000, .pid = 42};

static struct epd_grants *open_grants(uv_loop_t *loop, uint64_t *expired)
{
    assert_int_equal(uv_loop_init(loop), 0);
    return epd_grants_create(loop, expired);
}

static void close_grants(uv_loop_t *loop, struct epd_grants *grants)
{
    epd_grants_destroy(grants);
    assert_int_equal(uv_run(loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(loop), 0);
}

static void bound_to_the_caller(void **state)
{
    uv_loop_t loop;
    uint64_t expired = 0;
    uint8_t token[EPD_TOKEN_BYTES], other[EPD_TOKEN_BYTES] = {0};
    struct epd_grants *grants = open_grants(&loop, &expired);
    const struct epd_grant grant = {.kind = EPD_GRANT_CHUNK, .peer = g_me, .session = 5, .fd = -1};
    struct epd_peer stranger = g_me;
    (void)state;
    assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_OK);
    assert_null(epd_grants_find(grants, other, &g_me));
    stranger.pid++;
    assert_null(epd_grants_find(grants, token, &stranger));
    stranger = g_me;
    stranger.uid = 0;
    assert_null(epd_grants_find(grants, token, &stranger));
    struct epd_grant *found = epd_grants_find(grants, token, &g_me);
    assert_non_null(found);
    assert_int_equal(found->session, 5);
    epd_grants_remove(grants, found);
    assert_null(epd_grants_find(grants, token, &g_me));
    close_grants(&loop, grants);
}

static void expires(void **state)
{
    uv_loop_t loop;
    uint64_t expired = 0;
    uint8_t token[EPD_TOKEN_BYTES];
    int pipes[2];
    struct epd_grants *grants = open_grants(&loop, &expired);
    (void)state;
    assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
    const struct epd_grant grant = {.kind = EPD_GRANT_CHUNK, .peer = g_me, .fd = pipes[1]};
    assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_OK);
    epd_close_fd(&pipes[1]);
    struct epd_grant *found = epd_grants_find(grants, token, &g_me);
    assert_non_null(found);
    assert_true(found->expires_ns > epd_now_ns() + 9000000000ull);
    found->expires_ns = epd_now_ns() - 1;
    assert_null(epd_grants_find(grants, token, &g_me)); /* even before the sweep */
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0); /* ends when nothing is kept */
    assert_int_equal(expired, 1);
    char byte;
    assert_int_equal(read(pipes[0], &byte, 1), 0); /* its descriptor is closed */
    epd_close_fd(&pipes[0]);
    close_grants(&loop, grants);
}

static void quota(void **state)
{
    uv_loop_t loop;
    uint64_t expired = 0;
    uint8_t token[EPD_TOKEN_BYTES];
    struct epd_grants *grants = open_grants(&loop, &expired);
    struct epd_grant grant = {.kind = EPD_GRANT_IMPORT, .peer = g_me, .session = 9, .fd = -1};
    (void)state;
    for (unsigned i = 0; i < EPD_GRANTS_PER_UID; i++)
        assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_OK);
    assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_ELIMIT);
    grant.peer.uid++;
    grant.session++;
    assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_OK);
    epd_grants_remove_session(grants, 9);
    assert_non_null(epd_grants_find(grants, token, &grant.peer));
    grant.peer.uid--;
    assert_int_equal(epd_grants_issue(grants, &grant, token, NULL), EPD_OK);
    close_grants(&loop, grants);
}

static void count_event(void *arg, const struct epd_event *event)
{
    uint64_t *last = arg;
    assert_int_equal(event->sequence, *last + 1);
    *last = event->sequence;
}

static void events(void **state)
{
    struct epd_events *e = epd_events_create();
    uint64_t last = 0, n = 0;
    char text[300];
    (void)state;
    struct epd_events_sub *sub = epd_events_subscribe(e, count_event, &last);
    assert_null(epd_events_after(e, 0));
    for (unsigned i = 1; i <= EPD_EVENTS_KEPT + 10; i++)
        epd_events_add(e, "daemon", "x", "%u", i);
    assert_int_equal(last, EPD_EVENTS_KEPT + 10);
    assert_int_equal(epd_events_last(e), last);
    epd_events_unsubscribe(e, sub);
    uint64_t after = 0;
    for (const struct epd_event *v; (v = epd_events_after(e, after)) != NULL; n++) {
        assert_true(after == 0 ? v->sequence == 11 : v->sequence == after + 1);
        after = v->sequence;
    }
    assert_int_equal(n, EPD_EVENTS_KEPT);
    for (unsigned i = 0; i + 1 < sizeof(text); i += 2)
        memcpy(text + i, "\xc3\xa4", 2);
    text[sizeof(text) - 2] = '\0';
    epd_events_add(e, "daemon", "x", "a%s", text);
    const char *kept = epd_events_after(e, last)->text;
    assert_int_equal(strlen(kept) % 2, 1); /* no half of a character at the end */
    epd_events_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bound_to_the_caller),
                                       cmocka_unit_test(expires), cmocka_unit_test(quota),
                                       cmocka_unit_test(events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
