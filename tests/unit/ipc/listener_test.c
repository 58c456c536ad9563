#include "daemon/ipc/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static char g_dir[32];
static char g_path[64];
static char g_lock[80];

static int setup(void **state)
{
    (void)state;
    strcpy(g_dir, "/tmp/epd-listener.XXXXXX");
    if (mkdtemp(g_dir) == NULL)
        return -1;
    (void)snprintf(g_path, sizeof(g_path), "%s/epd.sock", g_dir);
    (void)snprintf(g_lock, sizeof(g_lock), "%s.lock", g_path);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    (void)unlink(g_path);
    (void)unlink(g_lock);
    return rmdir(g_dir); /* fails when a temporary name was left */
}

static bool can_connect(int type)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", g_path);
    EPD_AUTO_CLOSE int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
}
static void put_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, "mine", 4), 4);
    epd_close_fd(&fd);
}

static void mode_is_exact_whatever_the_umask(void **state)
{
    (void)state;
    static const mode_t masks[] = {0, 0022, 0077, 0777};
    static const mode_t modes[] = {0600, 0660, 0666, 0777};
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    const mode_t old = umask(0022);
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 2; j++) {
            struct epd_listener l;
            struct epd_error err = {.message = ""};
            struct stat st;
            (void)umask(masks[i]);
            if (epd_listener_open(&l, g_path, types[j], modes[i], "", &err) != EPD_OK)
                fail_msg("%s", err.message);
            assert_int_equal(umask(masks[i]), masks[i]);
            assert_int_equal(lstat(g_path, &st), 0);
            assert_true(S_ISSOCK(st.st_mode));
            assert_int_equal(st.st_mode & 07777, modes[i]);
            assert_true(can_connect(types[j]));
            assert_true((fcntl(l.fd, F_GETFL) & O_NONBLOCK) && (fcntl(l.fd, F_GETFD) & FD_CLOEXEC));
            epd_listener_close(&l);
            epd_listener_close(&l);
            assert_int_equal(lstat(g_path, &st), -1);
        }
    (void)umask(old);
}

static void group_is_set_or_named(void **state)
{
    (void)state;
    struct epd_listener l;
    struct epd_error err;
    struct stat st;
    assert_int_equal(epd_listener_open(&l, g_path, SOCK_STREAM, 0660, "no-such-group", &err),
                     EPD_ENOENT);
    assert_non_null(strstr(err.message, "no-such-group"));
    assert_int_equal(l.fd, -1);
    if (geteuid() != 0)
        return;
    assert_int_equal(epd_listener_open(&l, g_path, SOCK_STREAM, 0660, "daemon", &err), EPD_OK);
    assert_int_equal(lstat(g_path, &st), 0);
    assert_int_equal(st.st_gid, 1);
    epd_listener_close(&l);
}

static void stale_sockets_go_other_files_stay(void **state)
{
    (void)state;
    struct epd_listener l;
    struct epd_error err;
    struct stat st;
    char temporary[80];
    pid_t pid = fork();
    if (pid == 0) {
        (void)epd_listener_open(&l, g_path, SOCK_STREAM, 0600, "", NULL);
        (void)raise(SIGKILL);
    }
    (void)waitpid(pid, NULL, 0);
    assert_false(can_connect(SOCK_STREAM));
    assert_int_equal(epd_listener_open(&l, g_path, SOCK_STREAM, 0600, "", &err), EPD_OK);
    assert_true(can_connect(SOCK_STREAM));
    epd_listener_close(&l);

    put_file(g_path);
    assert_int_equal(epd_listener_open(&l, g_path, SOCK_STREAM, 0600, "", &err), EPD_EEXIST);
    assert_non_null(strstr(err.message, g_path));
    assert_true(lstat(g_path, &st) == 0 && st.st_size == 4);
    (void)unlink(g_path);

    (void)snprintf(temporary, sizeof(temporary), "%s~", g_path);
    put_file(temporary);
    assert_int_equal(epd_listener_open(&l, g_path, SOCK_STREAM, 0600, "", &err), EPD_EEXIST);
    assert_true(lstat(temporary, &st) == 0 && st.st_size == 4);
    (void)unlink(temporary);
}

static void close_leaves_a_successors_socket(void **state)
{
    (void)state;
    struct epd_listener first, second;
    assert_int_equal(epd_listener_open(&first, g_path, SOCK_STREAM, 0600, "", NULL), EPD_OK);
    assert_int_equal(epd_listener_open(&second, g_path, SOCK_STREAM, 0600, "", NULL), EPD_OK);
    epd_listener_close(&first);
    assert_true(can_connect(SOCK_STREAM));
    epd_listener_close(&second);
}

/* A child takes the lock and says so; then it waits to be killed. */
static pid_t holder(int *grandchild)
{
    int ready[2];
    char buf[16] = "";
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = -1;
        if (epd_lock_take(g_path, 0, &fd, NULL) != EPD_OK)
            _exit(1);
        pid_t inner = grandchild != NULL ? fork() : -1;
        if (inner != 0)
            (void)!write(ready[1], &inner, sizeof(inner));
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], buf, sizeof(buf)), sizeof(pid_t));
    if (grandchild != NULL)
        memcpy(grandchild, buf, sizeof(pid_t));
    epd_close_fd(&ready[0]);
    epd_close_fd(&ready[1]);
    return pid;
}

static void lock_names_its_holder(void **state)
{
    (void)state;
    struct epd_error err;
    struct stat st;
    char want[32];
    int fd = -1;
    pid_t pid = holder(NULL);
    const uint64_t start = epd_now_ns();
    assert_int_equal(epd_lock_take(g_path, 5000, &fd, &err), EPD_EBUSY);
    assert_true(epd_now_ns() - start < 2000000000ull); /* a living holder is not waited for */
    (void)snprintf(want, sizeof(want), "by pid %d:", (int)pid);
    assert_non_null(strstr(err.message, want));
    assert_int_equal(stat(g_lock, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_int_equal(epd_lock_take(g_path, 0, &fd, &err), EPD_OK);
    epd_close_fd(&fd);
}

/* The holder is dead, a child that inherited the lock is not yet. */
static void lock_waits_for_orphans(void **state)
{
    (void)state;
    struct epd_error err;
    int fd = -1;
    pid_t orphan = 0, pid = holder(&orphan);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    const uint64_t start = epd_now_ns();
    assert_int_equal(epd_lock_take(g_path, 100, &fd, &err), EPD_EBUSY);
    assert_true(epd_now_ns() - start >= 100000000ull);
    assert_non_null(strstr(err.message, "or its children"));
    pid_t killer = fork();
    if (killer == 0) {
        (void)usleep(50000);
        (void)kill(orphan, SIGKILL);
        _exit(0);
    }
    assert_int_equal(epd_lock_take(g_path, 10000, &fd, &err), EPD_OK);
    (void)waitpid(killer, NULL, 0);
    epd_close_fd(&fd);
}

static void lock_is_no_symbolic_link(void **state)
{
    (void)state;
    struct epd_error err;
    struct stat st;
    char victim[80];
    int fd = -1;
    (void)snprintf(victim, sizeof(victim), "%s/victim", g_dir);
    put_file(victim);
    assert_int_equal(symlink(victim, g_lock), 0);
    assert_int_equal(epd_lock_take(g_path, 0, &fd, &err), EPD_ESYS);
    assert_true(lstat(victim, &st) == 0 && st.st_size == 4);
    (void)unlink(victim);
}

static void folder_is_made(void **state)
{
    (void)state;
    struct epd_error err;
    struct stat st;
    char folder[64], path[128], lock[160];
    int fd = -1;
    (void)snprintf(folder, sizeof(folder), "%s/run", g_dir);
    (void)snprintf(path, sizeof(path), "%s/epd.sock", folder);
    (void)snprintf(lock, sizeof(lock), "%s.lock", path);
    const mode_t old = umask(0077);
    assert_int_equal(epd_lock_take(path, 0, &fd, &err), EPD_OK);
    (void)umask(old);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    epd_close_fd(&fd);
    (void)unlink(lock);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(epd_lock_take("/nonexistent/a/epd.sock", 0, &fd, &err), EPD_ESYS);
    assert_non_null(strstr(err.message, "/nonexistent/a/epd.sock.lock"));
    char longest[300];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[0] = '/';
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(epd_lock_take(longest, 0, &fd, &err), EPD_EINVAL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(mode_is_exact_whatever_the_umask),
        T(group_is_set_or_named),
        T(stale_sockets_go_other_files_stay),
        T(close_leaves_a_successors_socket),
        T(lock_names_its_holder),
        T(lock_waits_for_orphans),
        T(lock_is_no_symbolic_link),
        T(folder_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
