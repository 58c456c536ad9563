/* Child processes of a test: forked bodies and executed programs, each with a deadline on
 * everything. Every child dies with the test (PR_SET_PDEATHSIG) and is known to proc_kill_all().
 * Thread rule: one thread, the test's. */
#ifndef EPD_TESTS_PROC_H
#define EPD_TESTS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* EPD_TEST_SLOW: factor on every deadline and latency bound (sanitizers, loaded machines); >= 1. */
double slow_factor(void);
/* ms * slow_factor(). */
int slow_ms(int ms);
/* CLOCK_MONOTONIC, comparable between processes. */
uint64_t now_ns(void);
double ms_since(uint64_t start_ns);
void sleep_ms(int ms);

/* Fork; the child runs body(fd, arg) and leaves with _exit(its result). `fd` is the child's end of
 * a SEQPACKET pair, *fd_out the parent's (close-on-exec). Returns the pid. Fails the test. */
pid_t proc_fork(int (*body)(int fd, void *arg), void *arg, int *fd_out);
/* Fork and exec argv with stderr (and stdout) appended to `log` (NULL: the test's own). */
pid_t proc_exec(char *const argv[], const char *log);

enum { PROC_RUNNING = -1000, PROC_SIGNALLED = 1000 };
/* Wait at most ms (not scaled). Exit code, PROC_SIGNALLED + signal, or PROC_RUNNING. */
int proc_wait(pid_t pid, int ms);
/* SIGKILL and reap; 0 and reaped ones are ignored. */
void proc_kill(pid_t pid);
/* As a teardown: kill every child that has not been reaped. */
void proc_kill_all(void);

/* One datagram with a deadline. false: time is up or the peer is gone. */
bool proc_send(int fd, const void *msg, size_t n);
bool proc_recv(int fd, void *msg, size_t n, int ms);

/* Poll until cond(arg) or ms are over. */
bool wait_until(bool (*cond)(void *arg), void *arg, int ms);

#endif
