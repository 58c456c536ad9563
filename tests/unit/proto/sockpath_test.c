#include "proto/sockpath.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char *path_of(const char *flag, const char *config)
{
    static char buf[EPD_SOCKPATH_MAX];
    const char *problem = "";
    return epd_socket_path(flag, config, buf, sizeof(buf), &problem) == 0 ? buf : problem;
}

static void order(void **state)
{
    (void)state;
    (void)setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
    (void)setenv("EPD_SOCKET", "/env", 1);
    assert_string_equal(path_of("/flag", "/config"), "/flag");
    assert_string_equal(path_of("", "/config"), "/env");
    (void)setenv("EPD_SOCKET", "", 1);
    assert_string_equal(path_of(NULL, "/config"), "/config");
    (void)unsetenv("EPD_SOCKET");
    const int root = geteuid() == 0;
    assert_string_equal(path_of(NULL, ""), root ? "/run/epd/epd.sock" : "/run/user/1/epd/epd.sock");
    if (root && seteuid(65534) != 0)
        return;
    assert_string_equal(path_of(NULL, NULL), "/run/user/1/epd/epd.sock");
    (void)unsetenv("XDG_RUNTIME_DIR");
    assert_non_null(strstr(path_of(NULL, NULL), "XDG_RUNTIME_DIR"));
    assert_non_null(strstr(path_of(NULL, NULL), "--socket"));
    if (root)
        assert_int_equal(seteuid(0), 0);
}

/* 102 bytes: with ".lock" and the final zero that is all of sun_path. */
static void length(void **state)
{
    (void)state;
    char path[200];
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[102] = 0;
    assert_string_equal(path_of(path, NULL), path);
    path[102] = 'x';
    path[103] = 0;
    assert_non_null(strstr(path_of(path, NULL), "too long"));
    path[103] = 'x';
    path[199] = 0;
    assert_non_null(strstr(path_of(NULL, path), "too long"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),
        cmocka_unit_test(length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
