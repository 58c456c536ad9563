/* Any bytes as a configuration file: loads, or an error that says why; nothing leaks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct epd_config config;
    struct epd_error err = {.status = EPD_OK};
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (epd_config_load(&config, path, NULL, 0, &err) == EPD_OK)
        epd_config_fini(&config);
    else if (err.status == EPD_OK || err.message[0] == 0)
        abort();
    close(fd);
    return 0;
}
