#define EPD_LOG_COMPONENT "assert"
#include "daemon/base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"

uint64_t epd_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail with a valid clock and pointer */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void epd_close_fd(int *fd)
{
    if (*fd < 0)
        return;
    const int saved = errno;
    (void)close(*fd); /* Linux frees the descriptor whatever close says */
    *fd = -1;
    errno = saved;
}

void epd_free_ptr(void *p)
{
    void *memory;
    memcpy(&memory, p, sizeof(memory));
    free(memory);
    memory = NULL;
    memcpy(p, &memory, sizeof(memory));
}

void epd_random_bytes(void *buf, size_t n)
{
    unsigned char *at = buf;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        epd_assert(got > 0);
        at += got;
        n -= (size_t)got;
    }
}

void epd_assert_failed(const char *cond, const char *file, int line)
{
    log_error("invariant failed %s at %s:%d", cond, file, line);
    abort();
}
