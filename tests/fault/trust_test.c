/* test-timeout: 120 */
/* Who may do what: versions, tokens, keys, users, and what a client can see of the memory. */
#include "tests/support/suite.h"

#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/support/agent_internal.h"
#include "tests/support/raw.h"
#include "tests/support/rng.h"

SUITE_DAEMON(.devices = 2, .workers = 1)

#define TOKEN_MS 10000 /* life of a token */

/* ---- versions --------------------------------------------------------------------------- */

static AGENT_COMMAND(cmd_raw_attach)
{
    struct raw_session s = {0};
    reply->status =
        raw_attach(st->socket, (uint32_t)cmd->a[0], (uint32_t)cmd->a[1], &s, &reply->err);
    reply->v[0] = s.id;
    memcpy(&reply->v[1], s.token, 16);
    memcpy(&reply->v[3], s.key, 16);
}

static void versions(void **state)
{
    (void)state;
    struct agent a;
    agent_start(&a, &g_daemon);
    for (uint32_t abi = 0; abi < 2; abi++) {
        struct agent_cmd cmd = {.fn = cmd_raw_attach, .a = {abi ? 0 : 41, abi ? 41 : 0}};
        struct agent_reply r = agent_call(&a, &cmd);
        check_int(r.status, EPD_EVERSION, "attach with another version");
        check_true(strstr(r.err.message, "42") && strstr(r.err.message, "1"),
                   "the message does not name both versions: %s", r.err.message);
    }
    struct agent_reply r = agent_call(&a, &(struct agent_cmd){.fn = cmd_raw_attach});
    check_int(r.status, EPD_OK, "attach with the right versions");
    agent_end(&a);
}

/* ---- tokens ----------------------------------------------------------------------------- */

/* a[0], a[1]: the token; a[2]: bytes to send. v[0] 1 accepted as a session, 0 refused; keeps the
 * connection. */
static AGENT_COMMAND(cmd_raw_redeem)
{
    struct raw_answer a;
    unsigned char bytes[64];
    memset(bytes, 0x5a, sizeof(bytes));
    memcpy(bytes, &cmd->a[0], 16);
    raw_redeem(st->socket, bytes, (size_t)cmd->a[2], &a);
    reply->v[0] = a.got == 1 && a.reply.status == EPD_OK;
    reply->v[1] = (uint64_t)(int64_t)a.got;
    reply->v[2] = a.fds;
    st->kept_fd = a.sock;
}

/* Is the kept connection closed by the other side within a[0] ms? */
static AGENT_COMMAND(cmd_kept_closed)
{
    struct pollfd p = {.fd = st->kept_fd, .events = POLLIN | POLLRDHUP};
    uint64_t start = now_ns();
    reply->v[0] = poll(&p, 1, (int)cmd->a[0]) == 1 && (p.revents & (POLLHUP | POLLRDHUP)) != 0;
    reply->v[1] = (now_ns() - start) / 1000000u;
}

static struct agent_reply redeem(const struct agent *a, const uint64_t *token, size_t n)
{
    struct agent_cmd cmd = {.fn = cmd_raw_redeem, .a = {token[0], token[1], n}};
    return agent_call(a, &cmd);
}

static bool kept_closed(const struct agent *a, int ms)
{
    struct agent_cmd cmd = {.fn = cmd_kept_closed, .a = {(uint64_t)ms}};
    return agent_call(a, &cmd).v[0] == 1;
}

static void refused(const struct agent_reply *r, const char *what)
{
    check_true(r->v[0] == 0 && r->v[2] == 0, "%s was accepted", what);
    check_true((int64_t)r->v[1] >= 0, "%s: neither answered nor closed", what);
}

static void tokens(void **state)
{
    (void)state;
    struct agent a, b, late, silent;
    const uint64_t garbage[2] = {rng_mix(1), rng_mix(2)}, zero[2] = {0, 0};
    daemon_allow(&g_daemon, "token");
    agent_start(&a, &g_daemon);
    agent_start(&b, &g_daemon);
    agent_start(&late, &g_daemon);
    agent_start(&silent, &g_daemon);
    struct agent_cmd attach = {.fn = cmd_raw_attach};
    struct agent_reply expiring = agent_call(&late, &attach);
    (void)redeem(&silent, zero, 0);
    const uint64_t since = now_ns();
    struct agent_reply r = redeem(&a, garbage, 16);
    refused(&r, "a random token");
    r = redeem(&a, zero, 16);
    refused(&r, "a token of zeros");
    struct agent_reply s = agent_call(&a, &attach);
    r = redeem(&a, &s.v[1], 7);
    refused(&r, "half a token");
    r = redeem(&a, &s.v[1], 64);
    refused(&r, "a token with bytes behind it");
    s = agent_call(&a, &attach);
    r = redeem(&b, &s.v[1], 16);
    refused(&r, "a token of another process");
    s = agent_call(&a, &attach);
    r = redeem(&a, &s.v[1], 16);
    check_int(r.v[0], 1, "a good token");
    struct agent_reply again = redeem(&b, &s.v[1], 16);
    refused(&again, "a used token");
    check_true(!kept_closed(&a, 50), "the session of the first use was ended");
    while (ms_since(since) < TOKEN_MS + 700)
        sleep_ms(50);
    r = redeem(&late, &expiring.v[1], 16);
    refused(&r, "an expired token");
    check_true(kept_closed(&silent, slow_ms(5000)), "a silent connection is kept for ever");
    measured("a silent connection was closed within %.1f s", ms_since(since) / 1e3);
    check_true(!kept_closed(&a, 10), "an idle session was ended");
    agents_kill_all();
}

/* ---- what a client holds ---------------------------------------------------------------- */

#define MAX_INODES 64

struct inodes {
    unsigned long inode[MAX_INODES];
    bool writable[MAX_INODES];
    unsigned n;
};

static void inodes_of(pid_t pid, struct inodes *out)
{
    char path[64], line[512];
    *out = (struct inodes){0};
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    check_true(f != NULL, "open %s: %m", path);
    while (fgets(line, sizeof(line), f) && out->n < MAX_INODES) {
        char perms[5];
        unsigned long inode;
        if (!strstr(line, "memfd:") || sscanf(line, "%*s %4s %*s %*s %lu", perms, &inode) != 2)
            continue;
        out->writable[out->n] = perms[1] == 'w';
        out->inode[out->n++] = inode;
    }
    (void)fclose(f);
}

static int find(const struct inodes *set, unsigned long inode)
{
    for (unsigned i = 0; i < set->n; i++)
        if (set->inode[i] == inode)
            return (int)i;
    return -1;
}

static void mappings(void **state)
{
    (void)state;
    struct cluster c;
    struct inodes mine, peer, engine;
    pid_t pid[2];
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 2, .devices = 1});
    cluster_run(&c, RUN_PLAIN, 0, 2);
    check_int(daemon_engines(&g_daemon, pid, 2), 2, "engines");
    inodes_of(c.a[0].pid, &mine);
    inodes_of(c.a[1].pid, &peer);
    inodes_of(pid[0], &engine);
    check_true(mine.n >= 3, "only %u shared mappings found", mine.n);
    unsigned common = 0, private = 0;
    for (unsigned i = 0; i < mine.n; i++) {
        const int at = find(&peer, mine.inode[i]);
        common += at >= 0;
        check_true(at < 0 || (!mine.writable[i] && !peer.writable[at]),
                   "two sessions share memory that one of them can write");
    }
    for (unsigned i = 0; i < engine.n; i++)
    private += find(&mine, engine.inode[i]) < 0 && find(&peer, engine.inode[i]) < 0;
    check_int(common, 1, "memory that both sessions map (the status page)");
    check_true(private >= 1, "the exchange chunk is mapped by clients");
    measured("a client maps %u pieces of shared memory (1 read-only), the engine %u (%u its own)",
             mine.n, engine.n, private);
    /* No descriptor of anybody else's memory stays in the client either. */
    cluster_close(&c);
}

/* ---- keys ------------------------------------------------------------------------------- */

static void keys(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1});
    struct group_spec g = c.spec;
    struct seat_config s = c.seat;
    (void)snprintf(g.name, sizeof(g.name), "keyed");
    g.has_key = 1;
    rng_fill(3, g.key, 16);
    s.group = agent_create(&c.a[0], &g).v[0];
    check_int(agent_try_seat(&c.a[0], 1, &s).status, EPD_EPERM, "lease without a key");
    s.has_key = 1;
    rng_fill(4, s.key, 16);
    check_int(agent_try_seat(&c.a[0], 1, &s).status, EPD_EPERM, "lease with a wrong key");
    memcpy(s.key, g.key, 16);
    s.key[15] ^= 1;
    check_int(agent_try_seat(&c.a[0], 1, &s).status, EPD_EPERM, "lease with one wrong bit");
    s.key[15] ^= 1;
    agent_seat(&c.a[0], 1, &s);
    s.takeover = 1;
    s.has_key = 0;
    check_int(agent_try_seat(&c.a[0], 2, &s).status, EPD_EPERM, "takeover without a key");
    const struct run_args run = {.slot = 0, .seats = 2, .steps = 2};
    agents_run(c.a, 1, &run);
    cluster_close(&c);
}

/* ---- users ------------------------------------------------------------------------------ */

#define NOBODY 65534

/* Load the control library as root, then become nobody. */
static AGENT_COMMAND(cmd_become_nobody)
{
    struct epd_admin *admin = NULL;
    (void)cmd;
    if (epd_admin_open(st->socket, &admin, &reply->err) == EPD_OK)
        epd_admin_close(admin);
    reply->bad = setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
                 setresuid(NOBODY, NOBODY, NOBODY) != 0;
}

static void other_user(const char *mode, bool may_connect)
{
    struct daemon d;
    struct cluster c;
    struct agent stranger;
    char extra[32];
    (void)snprintf(extra, sizeof(extra), "socket_mode = %s\n", mode);
    daemon_start(&d, &(struct daemon_config){.extra = extra});
    daemon_allow(&d, "lost");
    check_true(chmod(d.dir, 0711) == 0, "chmod: %m");
    cluster_open(&c, &d, &(struct cluster_spec){.ranks = 2});
    agent_start(&stranger, &d);
    (void)agent_call(&stranger, &(struct agent_cmd){.fn = cmd_become_nobody});
    struct agent_reply r = agent_call(&stranger, &(struct agent_cmd){.fn = cmd_open});
    if (!may_connect) {
        check_int(r.status, EPD_EPERM, "another user's open of a 0660 socket");
    } else {
        check_int(r.status, EPD_OK, "another user's open of a 0666 socket");
        struct seat_config s = c.seat;
        s.group = c.group;
        s.rank = 1;
        check_int(agent_try_seat(&stranger, 0, &s).status, EPD_EPERM, "lease of another's seat");
        s.takeover = 1;
        check_int(agent_try_seat(&stranger, 0, &s).status, EPD_EPERM, "takeover");
        struct agent_cmd destroy = {.fn = cmd_destroy, .a = {c.group, 1}};
        check_int(agent_call(&stranger, &destroy).status, EPD_EPERM, "destroy of another's group");
    }
    cluster_run(&c, RUN_PLAIN, 0, 3);
    (void)agent_kill(&stranger);
    cluster_close(&c);
    daemon_stop(&d);
}

static void users(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: needs root to become another user\n");
        skip();
    }
    other_user("0660", false);
    other_user("0666", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE_TEST(versions), SUITE_TEST(mappings), SUITE_TEST(keys),
        SUITE_TEST(users),    SUITE_TEST(tokens),
    };
    return cmocka_run_group_tests_name("trust", tests, suite_setup, suite_teardown);
}
