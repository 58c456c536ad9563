/* Small helpers without state. */
#ifndef EPD_BASE_UTIL_H
#define EPD_BASE_UTIL_H

#include <stddef.h>
#include <stdint.h>

#define EPD_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define EPD_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Monotonic time in ns (CLOCK_MONOTONIC). */
uint64_t epd_now_ns(void);

/* Close *fd if >= 0 and set it to -1. Preserves errno. */
void epd_close_fd(int *fd);
/* Free *p (a void ** in disguise) and set it to NULL. */
void epd_free_ptr(void *p);
#define EPD_AUTO_CLOSE __attribute__((cleanup(epd_close_fd)))
#define EPD_AUTO_FREE __attribute__((cleanup(epd_free_ptr)))
static inline int epd_steal_fd(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

/* Fill buf with random bytes of the kernel (getrandom). */
void epd_random_bytes(void *buf, size_t n);

/* Invariants of our own code, on in release builds; never for input. Logs and aborts. */
#define epd_assert(cond) ((cond) ? (void)0 : epd_assert_failed(#cond, __FILE__, __LINE__))
__attribute__((noreturn)) void epd_assert_failed(const char *cond, const char *file, int line);

#endif
