/* test-timeout: 60 */
/* What the daemon hands out, by hand: a lease and a buffer of a raw session, every descriptor
 * examined. A client gets its own chunks, the status page that it cannot write, and its doorbell.
 */
#include "tests/support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/ring.h"
#include "proto/status.h"
#include "tests/support/agent_internal.h"
#include "tests/support/raw.h"

SUITE_DAEMON(.devices = 2, .workers = 1)

/* In the agent: one raw session and what it was granted. */
struct holding {
    struct raw_session s;
    struct raw_answer connection;
    Epd__V1__Session session;
};

static bool complain(struct agent_reply *reply, const char *what, const struct epd_error *err)
{
    (void)snprintf(reply->text, sizeof(reply->text), "%.200s: %.200s", what,
                   err ? err->message : "");
    reply->bad = 1;
    return false;
}

static bool attach(struct agent_state *st, struct holding *h, struct agent_reply *reply)
{
    if (raw_attach(st->socket, 0, 0, &h->s, &reply->err) != EPD_OK)
        return complain(reply, "attach", &reply->err);
    raw_redeem(st->socket, h->s.token, 16, &h->connection);
    if (h->connection.got != 1 || h->connection.reply.status != EPD_OK)
        return complain(reply, "session token", NULL);
    epd__v1__session__init(&h->session);
    h->session.id = h->s.id;
    h->session.key = (ProtobufCBinaryData){.len = 16, .data = h->s.key};
    return true;
}

/* The status page: mapped read-only it shows the engine; no way to write it. */
static const char *status_problem(int fd)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const struct epd_status_page *page =
        mmap(NULL, EPD_STATUS_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED || page->magic != EPD_STATUS_MAGIC)
        return "status page is not readable";
    if (mmap(NULL, EPD_STATUS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
        return "status page can be mapped writable";
    if (pwrite(fd, "x", 1, 0) >= 0)
        return "status page can be written";
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0 && (mmap(NULL, EPD_STATUS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, again,
                            0) != MAP_FAILED ||
                       pwrite(again, "x", 1, 0) >= 0))
        return "status page can be reopened and written";
    if (ftruncate(fd, 0) == 0)
        return "status page can be truncated";
    if (mprotect((void *)(uintptr_t)page, EPD_STATUS_PAGE_BYTES, PROT_READ | PROT_WRITE) == 0 &&
        again < 0)
        return "status page's mapping can be made writable";
    return NULL;
}

static const char *chunk_problem(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != bytes)
        return "chunk is not as large as granted";
    if (ftruncate(fd, 0) == 0)
        return "chunk can be truncated under the engine";
    const uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return "own chunk cannot be mapped";
    const bool is_ring = ((const struct epd_ring_header *)(const void *)p)->magic == EPD_RING_MAGIC;
    for (uint64_t i = 0; !is_ring && i < bytes; i++)
        if (p[i] != 0)
            return "a buffer chunk is not zero";
    return NULL;
}

/* Redeems each grant; counts kinds in v[0..2]: chunk, status, doorbell. */
static bool examine(struct agent_state *st, Epd__V1__FdGrant **grants, size_t n,
                    struct agent_reply *reply)
{
    for (size_t i = 0; i < n; i++) {
        struct raw_answer a;
        const char *problem = NULL;
        raw_redeem(st->socket, grants[i]->token.data, grants[i]->token.len, &a);
        if (a.got != 1 || a.reply.status != EPD_OK || a.fds != 1)
            return complain(reply, "grant was not honoured with one descriptor", NULL);
        if (strcmp(grants[i]->kind, "chunk") == 0) {
            problem = chunk_problem(a.fd[0], grants[i]->bytes);
            reply->v[0]++;
        } else if (strcmp(grants[i]->kind, "status") == 0) {
            problem = status_problem(a.fd[0]);
            reply->v[1]++;
        } else if (strcmp(grants[i]->kind, "doorbell") == 0) {
            const uint64_t one = 1;
            problem = write(a.fd[0], &one, 8) == 8 ? NULL : "doorbell does not ring";
            reply->v[2]++;
        } else {
            problem = "grant of an unknown kind";
        }
        raw_answer_close(&a);
        raw_redeem(st->socket, grants[i]->token.data, grants[i]->token.len, &a);
        if (a.got == 1 && a.reply.status == EPD_OK)
            problem = "a grant's token works twice";
        raw_answer_close(&a);
        if (problem)
            return complain(reply, problem, NULL);
    }
    return true;
}

static AGENT_COMMAND(cmd_grants)
{
    struct holding h;
    ProtobufCMessage *message = NULL;
    Epd__V1__AcquireLeaseRequest lease = EPD__V1__ACQUIRE_LEASE_REQUEST__INIT;
    Epd__V1__AllocBufferRequest alloc = EPD__V1__ALLOC_BUFFER_REQUEST__INIT;
    if (!attach(st, &h, reply))
        return;
    lease.session = &h.session;
    lease.group = cmd->a[0];
    lease.rank = 1;
    reply->status = raw_call(st->socket, "AcquireLease", &lease.base,
                             &epd__v1__lease_reply__descriptor, &message, &reply->err);
    if (reply->status != EPD_OK)
        return;
    const Epd__V1__LeaseReply *l = (const Epd__V1__LeaseReply *)(const void *)message;
    if (!examine(st, l->grants, l->n_grants, reply))
        return;
    reply->v[3] = l->n_grants;
    protobuf_c_message_free_unpacked(message, NULL);
    alloc.session = &h.session;
    alloc.bytes = 100000;
    reply->status = raw_call(st->socket, "AllocBuffer", &alloc.base,
                             &epd__v1__buffer_reply__descriptor, &message, &reply->err);
    if (reply->status != EPD_OK)
        return;
    const Epd__V1__BufferReply *b = (const Epd__V1__BufferReply *)(const void *)message;
    (void)examine(st, b->grants, b->n_grants, reply);
    reply->v[4] = b->n_grants;
    protobuf_c_message_free_unpacked(message, NULL);
    /* Another session's key does not open this one. */
    h.s.key[0] ^= 1;
    reply->v[5] =
        (uint64_t)-raw_call(st->socket, "AllocBuffer", &alloc.base, NULL, NULL, &reply->err);
    raw_answer_close(&h.connection);
}

static void every_descriptor(void **state)
{
    (void)state;
    struct cluster c;
    struct agent raw;
    daemon_allow(&g_daemon, "lost");
    cluster_open(&c, &g_daemon, &(struct cluster_spec){.ranks = 1});
    struct group_spec g = c.spec;
    g.shape.ranks = 2;
    g.placement[1] = 0;
    (void)snprintf(g.name, sizeof(g.name), "raw");
    struct agent_cmd cmd = {.fn = cmd_grants, .a = {agent_create(&c.a[0], &g).v[0]}};
    struct seat_config s = c.seat; /* rank 0 of the same group lives next door */
    s.w.shape = g.shape;
    s.group = cmd.a[0];
    agent_seat(&c.a[0], 1, &s);
    agent_start(&raw, &g_daemon);
    struct agent_reply r = agent_call(&raw, &cmd);
    check_true(r.status == EPD_OK, "raw calls: %s: %s", epd_status_string(r.status), r.err.message);
    check_int(r.v[3], 3, "grants of a lease");
    check_int(r.v[4], 1, "grants of a buffer");
    check_int(r.v[0], 2, "chunks");
    check_int(r.v[1], 1, "status pages");
    check_int(r.v[2], 1, "doorbells");
    check_true(r.v[5] == (uint64_t)-EPD_EPERM || r.v[5] == (uint64_t)-EPD_ESESSIONLOST ||
                   r.v[5] == (uint64_t)-EPD_ENOENT || r.v[5] == (uint64_t)-EPD_ESTALE,
               "a call with a wrong session key: %s",
               epd_status_string((enum epd_status) - (int)r.v[5]));
    measured("lease: %d grants, buffer: %d; all examined", (int)r.v[3], (int)r.v[4]);
    (void)agent_kill(&raw);
    cluster_run(&c, RUN_PLAIN, 0, 2);
    cluster_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SUITE_TEST(every_descriptor)};
    return cmocka_run_group_tests_name("grants", tests, suite_setup, suite_teardown);
}
