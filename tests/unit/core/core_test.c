/* Sessions, groups, leases and buffers: limits, permissions, ends at any moment, devices that fail.
 */
#include "daemon/core/core.h"

#include "daemon/core/buffer.h"
#include "daemon/core/desc.h"
#include "tests/unit/core/fake.h"

struct answer {
    bool done;
    struct epd_error err;
    struct epd_buffer_info buffer;
};

static void on_done(void *arg, const struct epd_error *err)
{
    struct answer *a = arg;
    a->done = true;
    a->err = err != NULL ? *err : (struct epd_error){.status = EPD_OK};
}

static void on_buffer(void *arg, const struct epd_buffer_info *info, const struct epd_error *err)
{
    struct answer *a = arg;
    on_done(a, err);
    if (info != NULL)
        a->buffer = *info;
}

static struct answer buffer_make(struct fixture *f, struct client *c, uint32_t device,
                                 uint64_t bytes)
{
    struct answer a = {.done = false};
    epd_buffer_create(c->session, device, bytes, on_buffer, &a);
    until(f, a.done);
    return a;
}

static enum epd_status destroy(struct fixture *f, uint64_t group, uid_t uid, bool force)
{
    struct answer a = {.done = false};
    const struct epd_peer caller = {.uid = uid, .gid = uid, .pid = 1};
    const struct epd_group_admin r = {.group = group, .caller = &caller, .force = force};
    epd_group_destroy(f->core, &r, on_done, &a);
    until(f, a.done);
    return a.err.status;
}

static void session_proof(void **state)
{
    struct fixture f;
    struct client c;
    struct epd_session *found;
    uint8_t key[16];
    (void)state;
    fixture_open(&f, 1, "");
    client_attach(&f, &c);
    struct epd_session_proof proof = {.id = c.id, .key = key, .key_len = 16, .uid = 1000};
    memcpy(key, epd_session_by_id(f.core, c.id)->key, 16);
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_ESESSIONLOST);
    client_open(&f, &c);
    proof.id = c.id;
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_EPERM);
    memcpy(key, c.session->key, 16);
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_OK);
    proof.uid = 0; /* root is nobody special here */
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_EPERM);
    proof.uid = 1000;
    proof.key_len = 15;
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_EPERM);
    epd_session_detach(c.session);
    proof.key_len = 16;
    assert_int_equal(epd_session_check(f.core, &proof, &found, NULL), EPD_ESESSIONLOST);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void session_limits(void **state)
{
    struct fixture f;
    struct client c[5];
    (void)state;
    fixture_open(&f, 1, "");
    for (unsigned i = 0; i < 4; i++)
        client_open(&f, &c[i]);
    client_attach(&f, &c[4]);
    assert_int_equal(c[4].err.status, EPD_ELIMIT);
    assert_non_null(strstr(c[4].err.message, "max_sessions_per_uid"));
    assert_int_equal(send(c[0].far, "x", 1, 0), 1); /* the connection carries nothing */
    until(&f, epd_session_by_id(f.core, c[0].id) == NULL);
    client_attach(&f, &c[4]);
    assert_int_equal(c[4].err.status, EPD_OK);
    epd_core_drain(f.core);
    struct client late;
    client_attach(&f, &late);
    assert_int_equal(late.err.status, EPD_EDRAINING);
    fixture_close(&f);
    for (unsigned i = 0; i < 4; i++)
        epd_close_fd(&c[i].far);
}

static void group_errors(void **state)
{
    struct fixture f;
    struct client c;
    uint8_t key[16] = {1};
    (void)state;
    fixture_open(&f, 1, "");
    client_open(&f, &c);
    struct made m = group_make(&f, &c, (struct epd_group_request){.name = "a b"});
    assert_int_equal(m.err.status, EPD_EINVAL);
    m = group_make(&f, &c, (struct epd_group_request){.key = key, .key_len = 5});
    assert_int_equal(m.err.status, EPD_EINVAL);
    m = group_make(&f, &c, (struct epd_group_request){.key = key, .key_len = 16});
    assert_int_equal(m.err.status, EPD_OK);
    assert_int_equal(client_lease(&f, &c, m.group->id, 0), EPD_EPERM); /* no key shown */
    assert_int_equal(client_lease(&f, &c, m.group->id + (1ull << 32), 0), EPD_ESTALE);
    assert_int_equal(client_lease(&f, &c, 99, 0), EPD_ENOENT);
    const uint64_t id = m.group->id;
    m = group_make(&f, &c, (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_EEXIST);
    m = group_make(&f, &c, (struct epd_group_request){.name = "2"});
    m = group_make(&f, &c, (struct epd_group_request){.name = "3"});
    m = group_make(&f, &c, (struct epd_group_request){.name = "4"});
    assert_int_equal(m.err.status, EPD_ELIMIT);
    assert_int_equal(destroy(&f, id, 1001, true), EPD_EPERM);
    assert_int_equal(destroy(&f, id, 1000, false), EPD_OK);
    assert_int_equal(destroy(&f, id, 1000, false), EPD_ESTALE);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void destroy_by_force(void **state)
{
    struct fixture f;
    struct client c;
    (void)state;
    fixture_open(&f, 2, "");
    client_open(&f, &c);
    const struct made m = group_make(&f, &c, (struct epd_group_request){0});
    const uint64_t id = m.group->id;
    assert_int_equal(client_lease(&f, &c, id, 1), EPD_OK);
    assert_int_equal(destroy(&f, id, 1000, false), EPD_EBUSY);
    assert_int_equal(destroy(&f, id, 0, true), EPD_OK); /* an administrator */
    assert_true(before(&f, "1 SEAT_CLEAR", "1 GROUP_DROP"));
    assert_true(before(&f, "1 GROUP_DROP", "1 DROP"));
    assert_int_equal(c.session->n_leases, 0);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void ephemeral_ends(void **state)
{
    struct fixture f;
    struct client c;
    (void)state;
    fixture_open(&f, 1, "");
    client_open(&f, &c);
    struct made m = group_make(&f, &c, (struct epd_group_request){.ephemeral = true});
    assert_int_equal(client_lease(&f, &c, m.group->id, 0), EPD_OK);
    epd_session_detach(c.session); /* the last lessee */
    until(&f, f.core->groups.used == 0);
    epd_close_fd(&c.far);
    client_open(&f, &c);
    m = group_make(&f, &c, (struct epd_group_request){.ephemeral = true});
    epd_session_detach(c.session); /* its creator, and nobody ever leased a seat */
    until(&f, f.core->groups.used == 0);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

/* A seat that is being reclaimed is waited for, not refused. */
static void lease_waits(void **state)
{
    struct fixture f;
    struct client c[2];
    (void)state;
    fixture_open(&f, 2, "");
    client_open(&f, &c[0]);
    client_open(&f, &c[1]);
    const struct made m = group_make(&f, &c[0], (struct epd_group_request){0});
    assert_int_equal(client_lease(&f, &c[0], m.group->id, 0), EPD_OK);
    epd_session_end(c[0].session, "test");
    client_ask(&c[1], m.group->id, 0, false);
    assert_false(c[1].done);
    until(&f, c[1].done);
    assert_int_equal(c[1].err.status, EPD_OK);
    assert_int_equal(c[1].lease.generation, 2);
    fixture_close(&f);
    epd_close_fd(&c[0].far);
    epd_close_fd(&c[1].far);
}

/* The session ends at every turn of the loop on the way to a lease. */
static void ends_while_joining(void **state)
{
    struct fixture f;
    struct client c, keeper;
    (void)state;
    fixture_open(&f, 2, "");
    client_open(&f, &keeper);
    const struct made m = group_make(&f, &keeper, (struct epd_group_request){0});
    for (unsigned turns = 0; turns < 12; turns++) {
        client_open(&f, &c);
        client_ask(&c, m.group->id, 1, false);
        for (unsigned i = 0; i < turns; i++) {
            (void)uv_run(&f.loop, UV_RUN_NOWAIT);
            usleep(100);
        }
        const uint64_t id = c.id;
        epd_session_end(c.session, "test");
        until(&f, c.done && epd_session_by_id(f.core, id) == NULL);
        epd_close_fd(&c.far);
        assert_null(m.group->seat[1].lease);
        assert_null(m.group->seat[1].joiner);
    }
    fixture_close(&f);
    epd_close_fd(&keeper.far);
}

static void buffers(void **state)
{
    struct fixture f;
    struct client c, other;
    struct epd_error err;
    (void)state;
    fixture_open(&f, 2, "");
    client_open(&f, &c);
    client_open(&f, &other);
    assert_int_equal(buffer_make(&f, &c, 2, 1).err.status, EPD_EINVAL);
    assert_int_equal(buffer_make(&f, &c, 0, 0).err.status, EPD_EINVAL);
    assert_int_equal(buffer_make(&f, &c, 0, UINT64_MAX).err.status, EPD_EINVAL);
    const struct answer a = buffer_make(&f, &c, 0, 5000);
    const struct answer b = buffer_make(&f, &c, 0, 4096);
    assert_int_equal(a.buffer.chunk, b.buffer.chunk);
    assert_int_equal(b.buffer.offset, 8192);
    assert_true(log_line(&f, "1 ADOPT", 1) != 0); /* peers write it */
    assert_int_equal(epd_buffer_free(other.session, a.buffer.buffer, &err), EPD_ENOENT);
    assert_int_equal(epd_buffer_free(c.session, a.buffer.buffer, &err), EPD_OK);
    assert_int_equal(epd_buffer_free(c.session, a.buffer.buffer, &err), EPD_ESTALE);
    assert_int_equal(buffer_make(&f, &c, 0, 1).buffer.offset, 0);
    const struct answer big = buffer_make(&f, &other, 0, 15u << 20); /* max_bytes_per_uid: 16M */
    assert_int_equal(big.err.status, EPD_ELIMIT);
    assert_non_null(strstr(big.err.message, "max_bytes_per_uid"));
    assert_int_equal(buffer_make(&f, &other, 0, 14u << 20).err.status, EPD_OK);
    fixture_close(&f);
    epd_close_fd(&c.far);
    epd_close_fd(&other.far);
}

static void engine_refuses(void **state)
{
    struct fixture f;
    struct client c;
    (void)state;
    fixture_open(&f, 2, "refuse:1:GROUP_SET;refuse:1:ADOPT;");
    client_open(&f, &c);
    const struct made m = group_make(&f, &c, (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_ENOMEM);
    assert_int_equal(buffer_make(&f, &c, 0, 4096).err.status, EPD_ENOMEM);
    until(&f, f.core->groups.used == 0 && f.core->chunks == NULL);
    assert_int_equal(c.session->bytes, 0);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void engine_stalls(void **state)
{
    struct fixture f;
    struct epd_device_info info;
    (void)state;
    fixture_open(&f, 1, "");
    epd_device_info(f.core->device[0], &info);
    assert_int_equal(kill(info.pid, SIGSTOP), 0);
    until(&f, epd_device_incarnation(f.core->device[0]) == 2);
    until(&f, epd_core_all_running(f.core));
    epd_device_info(f.core->device[0], &info);
    assert_non_null(strstr(info.cause, "engine_stall_ms"));
    assert_int_equal(info.restarts, 1);
    fixture_close(&f);
}

/* Dies at each start: failed after restart_max, shown with what to do; calls say EDEVICE. */
static void device_fails(void **state)
{
    struct fixture f;
    struct client c;
    struct epd_status_summary summary;
    (void)state;
    fixture_open(&f, 2, "die:1:CONFIG;");
    until(&f, epd_device_state(f.core->device[1]) == EPD_DEVICE_FAILED);
    assert_int_equal(epd_core_state(f.core), EPD_CORE_DEGRADED);
    epd_status_summary(f.core, &summary);
    assert_int_equal(summary.n_problems, 1);
    assert_non_null(strstr(summary.problem[0], "device 1 failed"));
    client_open(&f, &c); /* the control plane works */
    const struct made m = group_make(&f, &c, (struct epd_group_request){0});
    assert_int_equal(m.err.status, EPD_EDEVICE);
    const uint32_t first[2] = {0, 0};
    const struct made here =
        group_make(&f, &c, (struct epd_group_request){.placement = first, .n_placement = 2});
    assert_int_equal(here.err.status, EPD_OK);
    assert_int_equal(client_lease(&f, &c, here.group->id, 0), EPD_OK);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

/* A device of a group in use fails for good: rearm says so, and the end of the lessee frees all. */
static void device_fails_later(void **state)
{
    struct fixture f;
    struct client c;
    struct epd_device_info info;
    (void)state;
    fixture_open(&f, 2, "die:1:ADOPT;");
    client_open(&f, &c);
    const uint32_t first[2] = {0, 0};
    struct made m =
        group_make(&f, &c, (struct epd_group_request){.placement = first, .n_placement = 2});
    assert_int_equal(client_lease(&f, &c, m.group->id, 0), EPD_OK);
    assert_int_equal(setenv("EPD_FAKE", "die:0:CONFIG;", 1), 0);
    epd_device_info(f.core->device[0], &info);
    assert_int_equal(kill(info.pid, SIGKILL), 0);
    until(&f, epd_device_state(f.core->device[0]) == EPD_DEVICE_FAILED);
    assert_int_equal(client_rearm(&f, &c), EPD_EDEVICE);
    assert_int_equal(m.group->state, EPD_GROUP_WAITING);
    epd_session_end(c.session, "test");
    until(&f, f.core->sessions.used == 0);
    assert_int_equal(destroy(&f, m.group->id, 1000, false), EPD_OK);
    fixture_close(&f);
    epd_close_fd(&c.far);
}

static void stops_in_the_middle(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 10; turns++) {
        struct fixture f;
        struct client c[2];
        struct made late = {.done = false};
        struct answer buffer = {.done = false};
        fixture_open(&f, 2, "");
        client_open(&f, &c[0]);
        client_open(&f, &c[1]);
        struct made m = group_make(&f, &c[0], (struct epd_group_request){0});
        const struct epd_group_request r = {.name = "late", .shape = m.group->shape};
        assert_int_equal(client_lease(&f, &c[0], m.group->id, 0), EPD_OK);
        client_ask(&c[1], m.group->id, 0, true);
        epd_group_create(c[0].session, &r, on_made, &late);
        epd_buffer_create(c[0].session, 1, 4096, on_buffer, &buffer);
        for (unsigned i = 0; i < turns; i++) {
            (void)uv_run(&f.loop, UV_RUN_NOWAIT);
            usleep(100);
        }
        fixture_close(&f);
        assert_true(late.done && buffer.done && c[1].done); /* each answered */
        epd_close_fd(&c[0].far);
        epd_close_fd(&c[1].far);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_proof),       cmocka_unit_test(session_limits),
        cmocka_unit_test(group_errors),        cmocka_unit_test(destroy_by_force),
        cmocka_unit_test(ephemeral_ends),      cmocka_unit_test(lease_waits),
        cmocka_unit_test(ends_while_joining),  cmocka_unit_test(buffers),
        cmocka_unit_test(engine_refuses),      cmocka_unit_test(engine_stalls),
        cmocka_unit_test(device_fails),        cmocka_unit_test(device_fails_later),
        cmocka_unit_test(stops_in_the_middle),
    };
    FAKE_MAIN(tests);
}
