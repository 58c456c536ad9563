#include "daemon/ipc/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/util.h"

enum epd_status epd_memfd_create(const char *name, uint64_t bytes, bool final, int *fd_out,
                                 struct epd_error *err)
{
    EPD_AUTO_CLOSE int fd = -1;
    if (EPD_FAULT("memfd.create"))
        errno = ENOMEM;
    else
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return epd_fail_errno(err, "memfd_create of %s", name);
    if (ftruncate(fd, (off_t)bytes) != 0)
        return epd_fail_errno(err, "memfd %s of %llu bytes", name, (unsigned long long)bytes);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (final ? F_SEAL_SEAL : 0);
    if (fcntl(fd, F_ADD_SEALS, seals) != 0)
        return epd_fail_errno(err, "seals of memfd %s", name);
    *fd_out = epd_steal_fd(&fd);
    return EPD_OK;
}

enum epd_status epd_memfd_seal_future_write(int fd, struct epd_error *err)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        return epd_fail_errno(err, "F_SEAL_FUTURE_WRITE");
    return EPD_OK;
}

enum epd_status epd_memfd_map(int fd, uint64_t bytes, bool writable, void **base_out,
                              struct epd_error *err)
{
    void *base = MAP_FAILED;
    if (EPD_FAULT("memfd.map"))
        errno = ENOMEM;
    else
        base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return epd_fail_errno(err, "mmap of %llu bytes", (unsigned long long)bytes);
    *base_out = base;
    return EPD_OK;
}

void epd_memfd_unmap(void *base, uint64_t bytes)
{
    if (base != NULL)
        (void)munmap(base, bytes); /* fails only for arguments that mmap would not have returned */
}

enum epd_status epd_memfd_check_import(int fd, uint64_t bytes, struct epd_error *err)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    if (bytes == 0)
        return epd_fail(err, EPD_EINVAL, "an import of 0 bytes");
    if (seals < 0)
        return epd_fail(err, EPD_EINVAL,
                        "the file descriptor is not a memfd: create one with "
                        "memfd_create(MFD_ALLOW_SEALING)");
    if ((seals & need) != need)
        return epd_fail(err, EPD_EINVAL,
                        "the memfd lacks seals (has 0x%x): add F_SEAL_SHRINK | F_SEAL_GROW | "
                        "F_SEAL_SEAL",
                        (unsigned)seals);
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
        return epd_fail(err, EPD_EINVAL,
                        "the memfd is sealed against writing: leave out "
                        "F_SEAL_WRITE and F_SEAL_FUTURE_WRITE");
    if (fstat(fd, &st) != 0)
        return epd_fail_errno(err, "fstat of the memfd");
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
        return epd_fail(err, EPD_EINVAL, "the memfd has %lld bytes, %llu were announced",
                        (long long)st.st_size, (unsigned long long)bytes);
    int rc;
    do
        rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    if (rc != 0)
        return epd_fail_errno(err, "allocating the memfd's pages");
    return EPD_OK;
}
