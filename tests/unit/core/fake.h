/* A core whose engines are this test program, started again (fake_engine.h), and clients without a
 * process, so that every order of control messages can be looked at. */
#ifndef EPD_TESTS_UNIT_CORE_FAKE_H
#define EPD_TESTS_UNIT_CORE_FAKE_H

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/group.h"
#include "daemon/core/lease.h"
#include "daemon/core/session.h"
#include "daemon/core/status.h"
#include "tests/unit/core/fake_engine.h"

/* ---- the core ---- */

struct fixture {
    uv_loop_t loop;
    struct epd_config config;
    struct epd_core *core;
    char log[64];
    int lock;
    bool stopped;
};

static inline void on_fixture_stopped(void *arg)
{
    *(bool *)arg = true;
}

/* Turns the loop until the condition holds, at most 5 s. */
#define until(f, condition)                                                                        \
    do {                                                                                           \
        const uint64_t end_ = epd_now_ns() + 5000000000ull;                                        \
        while (!(condition)) {                                                                     \
            if (epd_now_ns() > end_)                                                               \
                fail_msg("never: %s", #condition);                                                 \
            (void)uv_run(&(f)->loop, UV_RUN_NOWAIT);                                               \
            usleep(200);                                                                           \
        }                                                                                          \
    } while (0)

static inline void fixture_open(struct fixture *f, unsigned devices, const char *fake)
{
    char number[8];
    (void)snprintf(number, sizeof(number), "%u", devices);
    const struct epd_config_override o[] = {
        {"devices", number},           {"engine_path", "/proc/self/exe"},
        {"restart_backoff_ms", "1"},   {"revoke_ms", "50"},
        {"engine_stall_ms", "400"},    {"restart_max", "3"},
        {"max_sessions_per_uid", "4"}, {"max_groups_per_uid", "3"},
        {"max_bytes_per_uid", "16M"},  {"chunk_bytes", "2M"}};
    memset(f, 0, sizeof(*f));
    (void)snprintf(f->log, sizeof(f->log), "/tmp/epd-core-XXXXXX");
    f->lock = mkostemp(f->log, O_CLOEXEC);
    assert_true(f->lock >= 0);
    assert_int_equal(setenv("EPD_FAKE_LOG", f->log, 1), 0);
    assert_int_equal(setenv("EPD_FAKE", fake, 1), 0);
    epd_log_init(EPD_LOG_ERROR, NULL);
    assert_int_equal(epd_config_load(&f->config, NULL, o, EPD_ARRAY_LEN(o), NULL), EPD_OK);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    const struct epd_core_options options = {
        .loop = &f->loop, .config = &f->config, .socket = "/tmp/none", .lock_fd = f->lock};
    assert_int_equal(epd_core_create(&options, &f->core, NULL), EPD_OK);
    epd_core_start(f->core);
    if (strstr(fake, "CONFIG") == NULL)
        until(f, epd_core_all_running(f->core));
}

static inline void fixture_close(struct fixture *f)
{
    epd_core_stop(f->core, on_fixture_stopped, &f->stopped);
    until(f, f->stopped);
    assert_null(f->core->chunks);
    assert_int_equal(f->core->sessions.used, 0);
    assert_int_equal(f->core->groups.used, 0);
    assert_int_equal(f->core->leases.used, 0);
    assert_int_equal(f->core->buffers.used, 0);
    epd_core_destroy(f->core);
    assert_int_equal(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    epd_config_fini(&f->config);
    (void)unlink(f->log);
    epd_close_fd(&f->lock);
}

/* Forget what the engines have been told so far. */
static inline void log_clear(const struct fixture *f)
{
    assert_int_equal(truncate(f->log, 0), 0);
}
/* Line number (from 1) of the n-th line with this text, 0: no such line. */
static inline unsigned log_line(const struct fixture *f, const char *text, unsigned n)
{
    char line[128];
    unsigned number = 0, found = 0;
    FILE *file = fopen(f->log, "re");
    assert_non_null(file);
    while (found == 0 && fgets(line, sizeof(line), file) != NULL) {
        number++;
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, text) == 0 && --n == 0)
            found = number;
    }
    (void)fclose(file);
    return found;
}
static inline bool before(const struct fixture *f, const char *a, const char *b)
{
    return log_line(f, a, 1) != 0 && log_line(f, a, 1) < log_line(f, b, 1);
}

/* ---- clients ---- */

struct client {
    struct epd_session *session;
    uint64_t id;
    int far; /* the client's end */
    struct epd_error err;
    struct epd_lease_info lease;
    bool done;
};

static inline void on_attached(void *arg, const struct epd_attach_info *info,
                               const struct epd_error *err)
{
    struct client *c = arg;
    c->done = true;
    c->err = err != NULL ? *err : (struct epd_error){.status = EPD_OK};
    c->id = info != NULL ? info->session : 0;
}
static inline void client_attach(struct fixture *f, struct client *c)
{
    const struct epd_attach_request request = {
        .peer = {.uid = 1000, .gid = 1000, .pid = getpid()}, .name = "test", .version = "1"};
    *c = (struct client){.far = -1};
    epd_session_attach(f->core, &request, on_attached, c);
    until(f, c->done);
}
static inline void client_open(struct fixture *f, struct client *c)
{
    int pair[2];
    client_attach(f, c);
    assert_int_equal(c->err.status, EPD_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    c->session = epd_session_by_id(f->core, c->id);
    c->far = pair[0];
    epd_session_connect(c->session, pair[1]);
}
static inline void on_lease(void *arg, const struct epd_lease_info *info,
                            const struct epd_error *err)
{
    struct client *c = arg;
    c->done = true;
    c->err = err != NULL ? *err : (struct epd_error){.status = EPD_OK};
    if (info != NULL)
        c->lease = *info;
}
static inline void client_ask(struct client *c, uint64_t group, uint32_t rank, bool takeover)
{
    const struct epd_lease_request request = {.group = group, .rank = rank, .takeover = takeover};
    const struct epd_lease_caller caller = {.fn = on_lease, .arg = c};
    c->done = false;
    epd_lease_acquire(c->session, &request, &caller);
}
static inline enum epd_status client_lease(struct fixture *f, struct client *c, uint64_t group,
                                           uint32_t rank)
{
    client_ask(c, group, rank, false);
    until(f, c->done);
    return c->err.status;
}
static inline enum epd_status client_rearm(struct fixture *f, struct client *c)
{
    const struct epd_lease_caller caller = {.fn = on_lease, .arg = c};
    c->done = false;
    epd_lease_rearm(c->session, c->lease.lease, &caller);
    until(f, c->done);
    return c->err.status;
}

struct made {
    struct epd_group *group;
    struct epd_error err;
    bool done;
};
static inline void on_made(void *arg, struct epd_group *group, const struct epd_error *err)
{
    struct made *m = arg;
    m->group = group;
    m->done = true;
    m->err = err != NULL ? *err : (struct epd_error){.status = EPD_OK};
}
static inline struct made group_make(struct fixture *f, struct client *c,
                                     struct epd_group_request r)
{
    struct made m = {.done = false};
    r.name = r.name != NULL ? r.name : "g";
    r.shape = (struct epd_shape){.ranks = 2,
                                 .experts = 4,
                                 .max_tokens = 4,
                                 .topk = 2,
                                 .hidden = 16,
                                 .dtype = EPD_DTYPE_BF16,
                                 .mode = EPD_MODE_LL,
                                 .layout = EPD_LAYOUT_EXPERT_MAJOR};
    epd_group_create(c->session, &r, on_made, &m);
    until(f, m.done);
    return m;
}

/* main() of a test program: an engine when started as one. */
#define FAKE_MAIN(tests)                                                                           \
    if (strcmp(argv[0], "epd-engine") == 0)                                                        \
        return fake_engine((unsigned)strtoul(argv[argc - 1], NULL, 10));                           \
    (void)signal(SIGPIPE, SIG_IGN);                                                                \
    return cmocka_run_group_tests(tests, NULL, NULL)

#endif
