/* Control calls against a daemon that the test plays: a transport table whose unary call is a
 * function here, and a broker thread that grants real descriptors. */
#include "tests/unit/client/fake.h"

#include <fcntl.h>
#include <sys/un.h>

#include "client/rpc/table.h"

enum { GRANT_RING = 1, GRANT_PAGE, GRANT_BELL, GRANT_BUFFERS };

struct daemon {
    struct epd epd; /* the session under test */
    char dir[32];
    int listener, ring, page[3], bell, buffers; /* page[incarnation] */
    pthread_t broker;
    uint64_t incarnation;
    uint32_t generation;
    bool held_rings, held_buffers; /* granted already */
    uint64_t held_page;
    enum epd_status fail; /* the next call fails with it */
    unsigned calls, leases, ops;
    uint8_t token[EPD_TOKEN_BYTES];
};
static struct daemon d;

static void *broker_main(void *arg)
{
    (void)arg;
    for (;;) {
        uint8_t token[EPD_TOKEN_BYTES] = {0};
        int sock = accept4(d.listener, NULL, NULL, SOCK_CLOEXEC);
        if (sock < 0)
            return NULL;
        (void)recv(sock, token, sizeof(token), 0);
        const int fds[] = {-1, d.ring, d.page[d.incarnation], d.bell, d.buffers};
        struct epd_fd_reply reply = {.kind = EPD_FD_REPLY_GRANT};
        struct iovec iov = {.iov_base = &reply, .iov_len = sizeof(reply)};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control = {.bytes = {0}};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fds[token[0]], sizeof(int));
        (void)sendmsg(sock, &msg, MSG_NOSIGNAL);
        (void)close(sock);
    }
}

static int memory(size_t bytes)
{
    int fd = memfd_create("daemon", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

/* ---- the daemon's side of the calls ----------------------------------------------------- */

static Epd__V1__FdGrant grant_of(uint8_t what, char *kind, uint64_t id, uint64_t bytes)
{
    static uint8_t tokens[8][EPD_TOKEN_BYTES];
    Epd__V1__FdGrant g = EPD__V1__FD_GRANT__INIT;
    tokens[what][0] = what;
    g.token = (ProtobufCBinaryData){EPD_TOKEN_BYTES, tokens[what]};
    g.kind = kind;
    g.id = id;
    g.bytes = bytes;
    return g;
}

static size_t pack(const ProtobufCMessage *m, uint8_t **out)
{
    *out = malloc(protobuf_c_message_get_packed_size(m) + 1);
    return protobuf_c_message_pack(m, *out);
}

static size_t reply_lease(uint8_t **out)
{
    static char chunk[] = "chunk", status[] = "status", doorbell[] = "doorbell";
    Epd__V1__LeaseReply r = EPD__V1__LEASE_REPLY__INIT;
    Epd__V1__Shape shape = EPD__V1__SHAPE__INIT;
    Epd__V1__FdGrant g[3], *grants[3];
    size_t n = 0;
    shape.ranks = 2;
    shape.experts = 4;
    shape.max_tokens = 8;
    shape.topk = 2;
    shape.hidden = 16;
    shape.dtype = EPD_DTYPE_FP32;
    shape.mode = EPD_MODE_LL;
    shape.layout = EPD_LAYOUT_EXPERT_MAJOR;
    if (!d.held_rings) {
        g[n++] = grant_of(GRANT_RING, chunk, 7, 8192);
        g[n++] = grant_of(GRANT_BELL, doorbell, 0, 0);
    }
    if (d.held_page != d.incarnation)
        g[n++] = grant_of(GRANT_PAGE, status, 0, EPD_STATUS_PAGE_BYTES);
    d.held_rings = true;
    d.held_page = d.incarnation;
    for (size_t i = 0; i < n; i++)
        grants[i] = &g[i];
    r.lease = 31;
    r.rank = 1;
    r.generation = d.generation;
    r.chunk = 7;
    r.ring_depth = 8;
    r.shape = &shape;
    r.grants = grants;
    r.n_grants = n;
    r.incarnation = d.incarnation;
    return pack(&r.base, out);
}

static size_t reply_buffer(uint8_t **out)
{
    static char chunk[] = "chunk";
    static uint64_t next = 0;
    Epd__V1__BufferReply r = EPD__V1__BUFFER_REPLY__INIT;
    Epd__V1__FdGrant g = grant_of(GRANT_BUFFERS, chunk, 8, 65536), *grants[] = {&g};
    r.buffer = 100 + next;
    r.chunk = 8;
    r.offset = 4096 * next++;
    r.bytes = 4096;
    r.grants = grants;
    r.n_grants = d.held_buffers ? 0 : 1;
    d.held_buffers = true;
    return pack(&r.base, out);
}

static size_t reply_group(uint8_t **out)
{
    static char name[] = "g";
    Epd__V1__GroupReply r = EPD__V1__GROUP_REPLY__INIT;
    Epd__V1__Group g = EPD__V1__GROUP__INIT;
    Epd__V1__Shape shape = EPD__V1__SHAPE__INIT;
    Epd__V1__Seat seat[2] = {EPD__V1__SEAT__INIT, EPD__V1__SEAT__INIT};
    Epd__V1__Seat *seats[] = {&seat[0], &seat[1]};
    shape.ranks = 2;
    seat[1].rank = 1;
    seat[1].device = 3;
    seat[1].session = 9;
    g.name = name;
    g.id = 77;
    g.shape = &shape;
    g.seats = seats;
    g.n_seats = 2;
    r.group = &g;
    return pack(&r.base, out);
}

static size_t reply_bind(uint8_t **out)
{
    Epd__V1__BindOpReply r = EPD__V1__BIND_OP_REPLY__INIT;
    r.desc_index = d.ops++;
    r.desc_generation = 5;
    return pack(&r.base, out);
}

static int fake_unary(struct epd_rpc_conn *conn, const char *method, const uint8_t *req,
                      size_t req_len, int64_t timeout_ns, uint8_t **resp_out, size_t *resp_len_out,
                      char *errbuf, size_t errlen)
{
    (void)conn;
    CHECK(timeout_ns > 0 && (req || !req_len));
    d.calls++;
    if (d.fail != EPD_OK) {
        enum epd_status status = d.fail;
        d.fail = EPD_OK;
        (void)snprintf(errbuf, errlen, "as told");
        return status;
    }
    method = strrchr(method, '/') + 1;
    if (!strcmp(method, "AcquireLease") || !strcmp(method, "Rearm"))
        *resp_len_out = reply_lease(resp_out);
    else if (!strcmp(method, "AllocBuffer"))
        *resp_len_out = reply_buffer(resp_out);
    else if (!strcmp(method, "CreateGroup") || !strcmp(method, "OpenGroup"))
        *resp_len_out = reply_group(resp_out);
    else if (!strcmp(method, "BindOp"))
        *resp_len_out = reply_bind(resp_out);
    else
        *resp_len_out = 0;
    return EPD_OK;
}

static const struct epd_rpc_table table = {.unary = fake_unary, .free_bytes = free};

static int setup(void **state)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int pair[2];
    (void)state;
    memset(&d, 0, sizeof(d));
    d.incarnation = 1;
    d.generation = 4;
    d.ring = memory(8192);
    d.buffers = memory(65536);
    d.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint64_t i = 1; i <= 2; i++) {
        const struct epd_status_page page = {.magic = EPD_STATUS_MAGIC,
                                             .abi = EPD_ABI_VERSION,
                                             .incarnation = i,
                                             .state = EPD_ENGINE_RUNNING};
        d.page[i] = memory(EPD_STATUS_PAGE_BYTES);
        CHECK(pwrite(d.page[i], &page, sizeof(page), 0) == (ssize_t)sizeof(page));
    }
    const struct epd_ring_header header = {
        .magic = EPD_RING_MAGIC, .abi = EPD_ABI_VERSION, .depth = 8};
    CHECK(pwrite(d.ring, &header, sizeof(header), 0) == (ssize_t)sizeof(header));

    (void)snprintf(d.dir, sizeof(d.dir), "/tmp/epd-control.XXXXXX");
    CHECK(mkdtemp(d.dir) != NULL);
    (void)snprintf(d.epd.fd_socket, sizeof(d.epd.fd_socket), "%s/fd", d.dir);
    memcpy(addr.sun_path, d.epd.fd_socket, sizeof(addr.sun_path));
    d.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(d.listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    CHECK(listen(d.listener, 16) == 0);
    CHECK(pthread_create(&d.broker, NULL, broker_main, NULL) == 0);

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    epdc_owner_init(&d.epd.owner);
    CHECK(pthread_mutex_init(&d.epd.lock, NULL) == 0);
    d.epd.session_fd = pair[0];
    d.epd.daemon_fd = pair[1]; /* so that it is closed as well; never readable before */
    d.epd.transport = (struct epdc_transport){.rpc = &table, .timeout_ns = 2000000000};
    return 0;
}

/* Sessions are on the heap: epd_close frees them. */
static struct epd *session(void)
{
    struct epd *epd = malloc(sizeof(*epd));
    CHECK(epd != NULL);
    memcpy(epd, &d.epd, sizeof(*epd));
    return epd;
}

static int teardown(void **state)
{
    (void)state;
    CHECK(shutdown(d.listener, SHUT_RDWR) == 0);
    CHECK(pthread_join(d.broker, NULL) == 0);
    const int fds[] = {d.listener, d.ring, d.page[1], d.page[2], d.bell, d.buffers};
    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        CHECK(close(fds[i]) == 0);
    CHECK(unlink(d.epd.fd_socket) == 0 && rmdir(d.dir) == 0);
    return 0;
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- tests ------------------------------------------------------------------------------ */

static void group(void **state)
{
    (void)state;
    struct epd *epd = session();
    struct epd_group_info info = EPD_GROUP_INFO_INIT;
    struct epd_error err;
    CHECK(epd_group_open(epd, "g", &info, &err) == EPD_OK);
    CHECK(info.id == 77 && info.ranks == 2 && info.leased == 1 && info.device[1] == 3);
    assert_string_equal(info.name, "g");
    d.fail = EPD_ENOENT;
    info.id = 1;
    CHECK(epd_group_open(epd, "g", &info, &err) == EPD_ENOENT && info.id == 1);
    assert_string_equal(err.message, "as told");
    CHECK(epd_group_destroy(epd, 77, 0, &err) == EPD_OK);
    epd_close(epd);
}

static void lease_and_rearm(void **state)
{
    (void)state;
    struct epd *epd = session();
    struct epd_lease *lease = NULL;
    struct epd_error err = {.message = ""};
    CHECK(epd_lease_acquire(epd, 77, 1, NULL, &lease, &err) == EPD_OK);
    CHECK(epd_lease_rank(lease) == 1 && epd_lease_generation(lease) == 4);
    CHECK(epd_lease_device(lease) == 0 && epd_lease_epoch(lease) == 0);
    CHECK(lease->page->incarnation == 1 && lease->depth == 8);
    epdc_ring_bell(lease);
    uint64_t rung = 0;
    CHECK(read(d.bell, &rung, sizeof(rung)) == (ssize_t)sizeof(rung) && rung == 1);

    /* The engine comes back as another incarnation: a new page, the ring stays. */
    lease->broken = EPD_EENGINERESTARTED;
    d.fail = EPD_EDEVICE;
    CHECK(epd_rearm(lease, &err) == EPD_EDEVICE && lease->broken == EPD_EENGINERESTARTED);
    d.incarnation = 2;
    d.generation = 5;
    CHECK(epd_rearm(lease, &err) == EPD_OK && lease->broken == EPD_OK);
    CHECK(epd_lease_generation(lease) == 5 && lease->page->incarnation == 2);

    unsigned before = d.calls;
    epd_lease_release(lease);
    CHECK(d.calls == before + 1 && epd->leases == NULL);
    epd_close(epd);
}

static void buffers_and_ops(void **state)
{
    (void)state;
    struct epd *epd = session();
    struct epd_lease *lease = NULL;
    struct epd_buffer *x = NULL, *y = NULL;
    struct epd_op *op = NULL, *other = NULL;
    struct epd_error err = {.message = ""};
    struct epd_dispatch_config config = EPD_DISPATCH_CONFIG_INIT;
    struct epd_submit submit = EPD_SUBMIT_INIT;
    CHECK(epd_lease_acquire(epd, 77, 1, NULL, &lease, &err) == EPD_OK);
    CHECK(epd_buffer_alloc(epd, 0, 4096, &x, &err) == EPD_OK);
    CHECK(epd_buffer_alloc(epd, 0, 4096, &y, &err) == EPD_OK);
    CHECK((char *)epd_buffer_ptr(y) == (char *)epd_buffer_ptr(x) + 4096);
    memset(epd_buffer_ptr(x), 1, 4096);

    config.recv = (struct epd_array){.buffer = x, .offset = 4096};
    CHECK(epd_dispatch_bind(lease, &config, &op, &err) == EPD_EINVAL);
    CHECK(strstr(err.message, "recv") != NULL);
    config.recv.offset = 0;
    config.x.buffer = y;
    CHECK(epd_dispatch_bind(lease, &config, &op, &err) == EPD_OK);
    CHECK(epd_dispatch_bind(lease, &config, &other, &err) == EPD_OK);
    CHECK(epd_buffer_free(x, &err) == EPD_EBUSY);
    CHECK(epd_dispatch(op, &submit, NULL) == EPD_OK);
    CHECK(epd_op_unbind(op, &err) == EPD_EBUSY); /* in flight */
    CHECK(epd_op_unbind(other, &err) == EPD_OK);
    epd_lease_release(lease); /* and its ops */
    d.fail = EPD_ETIMEDOUT;
    CHECK(epd_buffer_free(x, &err) == EPD_ETIMEDOUT); /* kept */
    CHECK(epd_buffer_free(x, &err) == EPD_OK && epd_buffer_free(y, &err) == EPD_OK);
    CHECK(epd->buffers == NULL);
    epd_close(epd);
}

/* The played daemon closes its ends on a thread of its own, a moment later. */
static bool fds_settle_at(unsigned n)
{
    for (unsigned i = 0; i < 400 && open_fds() != n; i++)
        (void)usleep(5000);
    return open_fds() == n;
}

static void close_frees_everything(void **state)
{
    (void)state;
    unsigned before = open_fds();
    struct epd *epd = session();
    struct epd_lease *lease = NULL;
    struct epd_buffer *buffer = NULL;
    struct epd_op *op = NULL;
    struct epd_combine_config config = EPD_COMBINE_CONFIG_INIT;
    CHECK(epd_lease_acquire(epd, 77, 1, NULL, &lease, NULL) == EPD_OK);
    CHECK(epd_buffer_alloc(epd, 0, 4096, &buffer, NULL) == EPD_OK);
    config.rows.buffer = buffer;
    CHECK(epd_combine_bind(lease, &config, &op, NULL) == EPD_OK);
    epd_close(epd);
    CHECK(fds_settle_at(before - 2)); /* the session's own two */
}

static void import_wants_seals(void **state)
{
    (void)state;
    struct epd *epd = session();
    struct epd_buffer *buffer = NULL;
    struct epd_error err;
    int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(fd, 4096) == 0);
    CHECK(epd_buffer_import(epd, 0, fd, 4096, &buffer, &err) == EPD_EINVAL);
    CHECK(strstr(err.message, "F_SEAL_SHRINK") != NULL && d.calls == 0);
    CHECK(close(fd) == 0);
    epd_close(epd);
}

static void lost_session(void **state)
{
    (void)state;
    struct epd *epd = session();
    struct epd_group_info info = EPD_GROUP_INFO_INIT;
    struct epd_error err;
    d.fail = EPD_ESESSIONLOST;
    CHECK(epd_group_open(epd, "g", &info, &err) == EPD_ESESSIONLOST);
    unsigned before = d.calls;
    CHECK(epd_group_open(epd, "g", &info, &err) == EPD_ESESSIONLOST);
    CHECK(epd_session_check(epd) == EPD_ESESSIONLOST && d.calls == before);
    epd_close(epd);
    CHECK(d.calls == before); /* nobody to detach from */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(group, setup, teardown),
        cmocka_unit_test_setup_teardown(lease_and_rearm, setup, teardown),
        cmocka_unit_test_setup_teardown(buffers_and_ops, setup, teardown),
        cmocka_unit_test_setup_teardown(close_frees_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(import_wants_seals, setup, teardown),
        cmocka_unit_test_setup_teardown(lost_session, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
