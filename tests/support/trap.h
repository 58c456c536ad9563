/* Looks into the middle of a sequence of memory accesses: the next access to a page that was closed
 * calls a hook, once, with the page open again, and then goes on. One trap at a time; the hook runs
 * in a signal handler. */
#ifndef EPD_TESTS_SUPPORT_TRAP_H
#define EPD_TESTS_SUPPORT_TRAP_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRAP_PAGE 4096u

static struct {
    void *page;
    void (*hook)(void);
    struct sigaction before;
    volatile sig_atomic_t hits;
} g_trap;

static void trap_hit(int number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)g_trap.page;
    if (at < page || at >= page + TRAP_PAGE || g_trap.hits != 0) {
        (void)signal(number, SIG_DFL); /* not ours: the access is repeated and kills */
        return;
    }
    g_trap.hits = 1;
    if (mprotect(g_trap.page, TRAP_PAGE, PROT_READ | PROT_WRITE) != 0)
        _exit(9);
    g_trap.hook();
}

/* prot: what stays allowed, PROT_NONE or PROT_READ. */
static inline int trap_set(void *page, int prot, void (*hook)(void))
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = trap_hit;
    action.sa_flags = SA_SIGINFO;
    g_trap.page = page;
    g_trap.hook = hook;
    g_trap.hits = 0;
    if (sigaction(SIGSEGV, &action, &g_trap.before) != 0)
        return -1;
    return mprotect(page, TRAP_PAGE, prot);
}

/* How often the hook ran. */
static inline int trap_end(void)
{
    (void)mprotect(g_trap.page, TRAP_PAGE, PROT_READ | PROT_WRITE);
    (void)sigaction(SIGSEGV, &g_trap.before, NULL);
    return g_trap.hits;
}

/* n pages of fresh memory, NULL on failure. */
static inline uint8_t *trap_pages(size_t n)
{
    void *base =
        mmap(NULL, n * TRAP_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

#endif
