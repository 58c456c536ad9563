#include "daemon/ipc/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define BYTES (1u << 20)

static void created_memory_is_sealed_and_zero(void **state)
{
    (void)state;
    struct epd_error err;
    int fd = -1;
    void *base = NULL;
    static const char zero[BYTES];
    assert_int_equal(epd_memfd_create("unit", BYTES, true, &fd, &err), EPD_OK);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, 2 * BYTES), -1);
    assert_int_equal(epd_memfd_map(fd, BYTES, true, &base, &err), EPD_OK);
    assert_memory_equal(base, zero, BYTES);
    epd_memfd_unmap(base, BYTES);
    epd_memfd_unmap(NULL, BYTES);
    assert_int_equal(epd_memfd_check_import(fd, BYTES, &err), EPD_OK);
    epd_close_fd(&fd);
}

static void future_writers_are_shut_out(void **state)
{
    (void)state;
    struct epd_error err;
    int fd = -1;
    void *writer = NULL, *reader = NULL, *late = NULL;
    assert_int_equal(epd_memfd_create("unit", BYTES, false, &fd, &err), EPD_OK);
    assert_int_equal(epd_memfd_map(fd, BYTES, true, &writer, &err), EPD_OK);
    assert_int_equal(epd_memfd_seal_future_write(fd, &err), EPD_OK);
    assert_int_equal(epd_memfd_map(fd, BYTES, true, &late, &err), EPD_ESYS);
    assert_null(late);
    assert_int_equal(epd_memfd_map(fd, BYTES, false, &reader, &err), EPD_OK);
    assert_int_equal(mprotect(reader, BYTES, PROT_READ | PROT_WRITE), -1);
    *(volatile char *)writer = 7; /* the old mapping still writes */
    assert_int_equal(*(volatile char *)reader, 7);
    assert_int_equal(epd_memfd_seal_future_write(fd, &err), EPD_ESYS); /* sealed for good */
    assert_int_equal(epd_memfd_check_import(fd, BYTES, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "against writing"));
    epd_memfd_unmap(writer, BYTES);
    epd_memfd_unmap(reader, BYTES);
    epd_close_fd(&fd);
}

static int foreign(unsigned flags, off_t bytes, int seals)
{
    int fd = memfd_create("foreign", flags);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    if (seals != 0)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void imports_are_checked(void **state)
{
    (void)state;
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    static const char *const path = "/dev/null";
    const struct {
        int fd;
        uint64_t bytes;
        const char *want;
    } rows[] = {
        {foreign(0, BYTES, 0), BYTES, "lacks seals"}, /* not sealable: F_SEAL_SEAL alone */
        {foreign(MFD_ALLOW_SEALING, BYTES, 0), BYTES, "lacks seals"},
        {foreign(MFD_ALLOW_SEALING, BYTES, F_SEAL_SHRINK | F_SEAL_GROW), BYTES, "lacks seals"},
        {foreign(MFD_ALLOW_SEALING, BYTES, F_SEAL_SHRINK | F_SEAL_SEAL), BYTES, "lacks seals"},
        {foreign(MFD_ALLOW_SEALING, BYTES, all | F_SEAL_WRITE), BYTES, "against writing"},
        {foreign(MFD_ALLOW_SEALING, BYTES - 1, all), BYTES, "were announced"},
        {foreign(MFD_ALLOW_SEALING, BYTES, all), 1ull << 63, "were announced"},
        {foreign(MFD_ALLOW_SEALING, BYTES, all), 0, "0 bytes"},
        {open(path, O_RDWR | O_CLOEXEC), BYTES, "not a memfd"},
        {-1, BYTES, "not a memfd"},
    };
    for (size_t i = 0; i < EPD_ARRAY_LEN(rows); i++) {
        struct epd_error err = {.message = ""};
        int fd = rows[i].fd;
        assert_int_equal(epd_memfd_check_import(fd, rows[i].bytes, &err), EPD_EINVAL);
        if (strstr(err.message, rows[i].want) == NULL)
            fail_msg("row %zu: \"%s\" is not in \"%s\"", i, rows[i].want, err.message);
        epd_close_fd(&fd);
    }
}

static void holes_of_imports_are_filled(void **state)
{
    (void)state;
    struct stat st;
    int fd = foreign(MFD_ALLOW_SEALING, 64 * BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    assert_int_equal(epd_memfd_check_import(fd, 64 * BYTES, NULL), EPD_OK);
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_blocks * 512 >= 64 * (long)BYTES);
    epd_close_fd(&fd);
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    struct epd_error err;
    int fd = 77;
    void *base = &err;
    epd_fault_set("memfd.create:1,memfd.map:1");
    assert_int_equal(epd_memfd_create("unit", BYTES, true, &fd, &err), EPD_ENOMEM);
    assert_int_equal(fd, 77);
    assert_int_equal(epd_memfd_map(0, BYTES, true, &base, &err), EPD_ENOMEM);
    assert_ptr_equal(base, &err);
    epd_fault_set(NULL);
    assert_int_not_equal(epd_memfd_create("unit", 1ull << 63, true, &fd, &err), EPD_OK);
    assert_int_equal(fd, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(created_memory_is_sealed_and_zero),
        cmocka_unit_test(future_writers_are_shut_out),
        cmocka_unit_test(imports_are_checked),
        cmocka_unit_test(holes_of_imports_are_filled),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
