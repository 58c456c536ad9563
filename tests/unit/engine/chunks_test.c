/* The chunk table over the host transport: mappings, checks of foreign memory, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/util.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/transport.h"

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

static struct epd_chunks *new_table(void)
{
    struct epd_chunks *chunks = NULL;
    assert_int_equal(epd_chunks_create(&epd_transport_host, &chunks, NULL), EPD_OK);
    return chunks;
}

static struct epd_msg_chunk chunk_of(uint64_t id, uint64_t bytes, uint32_t kind)
{
    return (struct epd_msg_chunk){.chunk = id, .bytes = bytes, .kind = kind, .device = 1};
}

static void new_chunk_is_zeroed_and_shared(void **state)
{
    (void)state;
    static const uint8_t zero[8192];
    struct epd_chunks *mine = new_table(), *theirs = new_table();
    const struct epd_msg_chunk msg = chunk_of(7, sizeof(zero), EPD_CHUNK_BUFFERS);
    int fd = -1;
    uint64_t count, bytes;
    assert_int_equal(epd_chunks_add_new(mine, &msg, &fd, NULL), EPD_OK);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    const struct epd_chunk *a = epd_chunks_find(mine, 7);
    assert_non_null(a);
    assert_int_equal(a->bytes, sizeof(zero));
    assert_int_equal(a->kind, EPD_CHUNK_BUFFERS);
    assert_int_equal(a->device, 1);
    assert_memory_equal(a->base, zero, sizeof(zero));

    assert_int_equal(epd_chunks_adopt(theirs, &msg, fd, NULL), EPD_OK);
    epd_close_fd(&fd); /* was borrowed */
    const struct epd_chunk *b = epd_chunks_find(theirs, 7);
    a->base[4096] = 42;
    assert_int_equal(b->base[4096], 42);
    epd_chunks_totals(theirs, &count, &bytes);
    assert_int_equal(count, 1);
    assert_int_equal(bytes, sizeof(zero));
    /* The other side's mapping outlives ours. */
    assert_int_equal(epd_chunks_drop(mine, 7, NULL), EPD_OK);
    assert_null(epd_chunks_find(mine, 7));
    assert_int_equal(b->base[4096], 42);
    epd_chunks_totals(mine, &count, &bytes);
    assert_int_equal(count + bytes, 0);
    epd_chunks_destroy(mine);
    epd_chunks_destroy(theirs);
    epd_chunks_destroy(NULL);
}

static void bad_messages_are_refused(void **state)
{
    (void)state;
    struct epd_chunks *chunks = new_table();
    struct epd_error err;
    int fd = -1;
    const struct {
        struct epd_msg_chunk msg;
        enum epd_status status;
        const char *says;
    } cases[] = {
        {chunk_of(0, 4096, EPD_CHUNK_RINGS), EPD_EINVAL, "chunk 0 of"},
        {chunk_of(1, 0, EPD_CHUNK_RINGS), EPD_EINVAL, "of 0 bytes"},
        {chunk_of(1, 4097, EPD_CHUNK_RINGS), EPD_EINVAL, "of 4097 bytes"},
        {chunk_of(1, 4096, 0), EPD_EINVAL, "kind 0"},
        {chunk_of(1, 4096, EPD_CHUNK_IMPORT + 1), EPD_EINVAL, "kind 5"},
        {{.chunk = 1, .bytes = 4096, .kind = EPD_CHUNK_RINGS, .device = EPD_MAX_DEVICES},
         EPD_EINVAL,
         "device is 16"},
        {chunk_of(9, 4096, EPD_CHUNK_RINGS), EPD_EEXIST, "chunk 9"},
        {chunk_of(1, UINT64_MAX - 4095, EPD_CHUNK_RINGS), EPD_ESYS, "bytes"},
    };
    const struct epd_msg_chunk nine = chunk_of(9, 4096, EPD_CHUNK_RINGS);
    assert_int_equal(epd_chunks_add_new(chunks, &nine, &fd, NULL), EPD_OK);
    const struct epd_chunk *before = epd_chunks_find(chunks, 9);
    for (unsigned i = 0; i < EPD_ARRAY_LEN(cases); i++) {
        int none = -1;
        assert_int_equal(epd_chunks_add_new(chunks, &cases[i].msg, &none, &err), cases[i].status);
        assert_int_equal(none, -1);
        if (strstr(err.message, cases[i].says) == NULL)
            fail_msg("case %u: %s", i, err.message);
        if (cases[i].status != EPD_ESYS)
            assert_int_equal(epd_chunks_adopt(chunks, &cases[i].msg, fd, &err), cases[i].status);
    }
    assert_ptr_equal(epd_chunks_find(chunks, 9), before);
    assert_null(epd_chunks_find(chunks, 1));
    assert_int_equal(epd_chunks_drop(chunks, 1, &err), EPD_ENOENT);
    assert_non_null(strstr(err.message, "chunk 1 "));
    epd_close_fd(&fd);
    epd_chunks_destroy(chunks);
}

/* Foreign memory is checked, our own (already checked when it was made) is not. */
static void imports_are_checked(void **state)
{
    (void)state;
    struct epd_chunks *chunks = new_table();
    struct epd_error err;
    int fd = memfd_create("unit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 8192), 0);
    struct epd_msg_chunk msg = chunk_of(1, 8192, EPD_CHUNK_IMPORT);
    assert_int_equal(epd_chunks_adopt(chunks, &msg, fd, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "seal"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    msg.bytes = 12288;
    assert_int_equal(epd_chunks_adopt(chunks, &msg, fd, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "8192"));
    msg.bytes = 8192;
    assert_int_equal(epd_chunks_adopt(chunks, &msg, fd, &err), EPD_OK);
    assert_int_equal(epd_chunks_find(chunks, 1)->kind, EPD_CHUNK_IMPORT);
    epd_close_fd(&fd);
    epd_chunks_destroy(chunks);
}

/* Ids come and go in all orders: the table grows, and closes its gaps. */
static void many_ids(void **state)
{
    (void)state;
    enum { N = 600 };
    static bool alive[N + 1];
    struct epd_chunks *chunks = new_table();
    int fd = -1;
    uint64_t count, bytes, seed = 1;
    struct epd_msg_chunk msg = chunk_of(1, 4096, EPD_CHUNK_RINGS);
    assert_int_equal(epd_chunks_add_new(chunks, &msg, &fd, NULL), EPD_OK);
    const struct epd_chunk *first = epd_chunks_find(chunks, 1);
    alive[1] = true;
    for (unsigned step = 0; step < 6000; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        const uint32_t id = 2 + (uint32_t)(seed >> 33) % (N - 1);
        msg.chunk = (uint64_t)id << (id % 3 * 20); /* sparse, as after long lives */
        if (alive[id])
            assert_int_equal(epd_chunks_drop(chunks, msg.chunk, NULL), EPD_OK);
        else
            assert_int_equal(epd_chunks_adopt(chunks, &msg, fd, NULL), EPD_OK);
        alive[id] = !alive[id];
        if (step % 200 != 0)
            continue;
        uint64_t expected = 0;
        for (uint32_t i = 1; i <= N; i++) {
            const uint64_t at = i == 1 ? 1 : (uint64_t)i << (i % 3 * 20);
            const struct epd_chunk *c = epd_chunks_find(chunks, at);
            assert_int_equal(c != NULL, alive[i]);
            if (c != NULL)
                assert_int_equal(c->id, at);
            expected += alive[i];
        }
        epd_chunks_totals(chunks, &count, &bytes);
        assert_int_equal(count, expected);
        assert_int_equal(bytes, expected * 4096);
    }
    assert_ptr_equal(epd_chunks_find(chunks, 1), first); /* a chunk never moves */
    epd_close_fd(&fd);
    epd_chunks_destroy(chunks);
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    static const char *const faults[] = {"memfd.create", "memfd.map"};
    struct epd_chunks *chunks = new_table();
    const struct epd_msg_chunk msg = chunk_of(3, 4096, EPD_CHUNK_BUFFERS);
    for (unsigned i = 0; i < EPD_ARRAY_LEN(faults); i++) {
        const unsigned before = open_fds();
        struct epd_error err = {0};
        int fd = -1;
        epd_fault_set(faults[i]);
        const enum epd_status status = epd_chunks_add_new(chunks, &msg, &fd, &err);
        epd_fault_set(NULL);
        assert_int_equal(status, EPD_ENOMEM);
        assert_true(err.message[0] != '\0');
        assert_int_equal(fd, -1);
        assert_null(epd_chunks_find(chunks, 3));
        assert_int_equal(open_fds(), before);
    }
    int fd = -1;
    assert_int_equal(epd_chunks_add_new(chunks, &msg, &fd, NULL), EPD_OK);
    epd_close_fd(&fd);
    epd_chunks_destroy(chunks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_chunk_is_zeroed_and_shared),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(imports_are_checked),
        cmocka_unit_test(many_ids),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
