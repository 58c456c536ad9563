/* Loading libepd-rpc.so, and opening a session where no daemon is. EPD_LIB_DIR names the folder of
 * the library (default build/lib). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/admin.h"
#include "client/epd.h"

static int64_t now_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Before the first success: it is kept for the life of the process. */
static void library_missing(void **state)
{
    (void)state;
    struct epd_admin *admin = NULL;
    struct epd_error err;
    assert_int_equal(setenv("EPD_RPC_LIB", "/no/such/libepd-rpc.so", 1), 0);
    assert_int_equal(epd_admin_open("/tmp/x.sock", &admin, &err), EPD_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "/no/such/libepd-rpc.so"));
    assert_non_null(strstr(err.message, "EPD_RPC_LIB"));
    assert_null(admin);

    assert_int_equal(setenv("EPD_RPC_LIB", "libm.so.6", 1), 0);
    assert_int_equal(epd_admin_open("/tmp/x.sock", &admin, &err), EPD_EVERSION);
}

static void use_library(void)
{
    const char *dir = getenv("EPD_LIB_DIR");
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/libepd-rpc.so", dir ? dir : "build/lib");
    assert_int_equal(setenv("EPD_RPC_LIB", path, 1), 0);
}

static void no_daemon(void **state)
{
    (void)state;
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd *epd = NULL;
    struct epd_error err;
    use_library();
    options.socket = "/tmp/epd-no-such-directory/epd.sock";
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EUNREACHABLE);
    assert_non_null(strstr(err.message, options.socket));
    assert_non_null(strstr(err.message, "start epd"));
    assert_null(epd);

    options.wait_daemon = 1;
    options.timeout_ns = 300000000;
    int64_t begin = now_ms();
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EUNREACHABLE);
    int64_t took = now_ms() - begin;
    assert_in_range(took, 150, 2000);
}

/* Somebody listens, and never answers. */
static void silent_daemon(void **state)
{
    (void)state;
    char dir[] = "/tmp/epd-open.XXXXXX";
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd *epd = NULL;
    struct epd_error err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/epd.sock", dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 8), 0);
    options.socket = addr.sun_path;
    options.timeout_ns = 200000000;
    int64_t begin = now_ms();
    enum epd_status status = epd_open(&options, &epd, &err);
    assert_true(status == EPD_ETIMEDOUT || status == EPD_EUNREACHABLE);
    assert_in_range(now_ms() - begin, 100, 5000);

    assert_int_equal(close(fd), 0);
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EUNREACHABLE);
    assert_non_null(strstr(err.message, "nobody listens"));
    assert_int_equal(unlink(addr.sun_path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd *epd = NULL;
    struct epd_error err;
    char name[65], path[200];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    options.name = name;
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EINVAL);
    options.name = NULL;
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    options.socket = path;
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "too long"));
    options.size = 3;
    assert_int_equal(epd_open(&options, &epd, &err), EPD_EINVAL);
    assert_int_equal(epd_open(NULL, NULL, &err), EPD_EINVAL);
    epd_close(NULL);
    epd_lease_release(NULL);
    assert_int_equal(epd_buffer_free(NULL, NULL), EPD_OK);
    assert_int_equal(epd_op_unbind(NULL, NULL), EPD_OK);
}

static void admin(void **state)
{
    (void)state;
    struct epd_admin *a = NULL;
    struct epd_error err;
    uint8_t *reply = NULL;
    size_t len = 0;
    use_library();
    assert_int_equal(epd_admin_open("/tmp/epd-none.sock", &a, &err), EPD_OK);
    assert_string_equal(epd_admin_socket(a), "/tmp/epd-none.sock");
    assert_int_equal(epd_admin_call(a, "GetVersion", NULL, 0, 100000000, &reply, &len, &err),
                     EPD_EUNREACHABLE);
    assert_null(reply);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int bad = epd_admin_call(a, "GetVersion", NULL, 0, 0, &reply, &len, &err) != EPD_EFORKED;
        epd_admin_close(a);
        _exit(bad);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    epd_admin_close(a);
    epd_admin_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_missing), cmocka_unit_test(no_daemon),
        cmocka_unit_test(silent_daemon),   cmocka_unit_test(bad_arguments),
        cmocka_unit_test(admin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
