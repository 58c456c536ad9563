#include "daemon/base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static char g_path[] = "/tmp/epd-config-test.XXXXXX";

static void put_file(const char *text, size_t len)
{
    FILE *f = fopen(g_path, "w");
    assert_true(f != NULL && fwrite(text, 1, len, f) == len && fclose(f) == 0);
}

/* Load a file of this text; the message on failure. */
static enum epd_status load(const char *text, struct epd_config *c, struct epd_error *err)
{
    put_file(text, strlen(text));
    return epd_config_load(c, g_path, NULL, 0, err);
}

static void defaults(void **state)
{
    (void)state;
    struct epd_config c;
    assert_int_equal(epd_config_load(&c, NULL, NULL, 0, NULL), EPD_OK);
    assert_string_equal(c.backend, "auto");
    assert_string_equal(c.socket, "");
    assert_string_equal(c.admin_group, "epd-admin");
    assert_int_equal(c.socket_mode, 0660);
    assert_int_equal(c.devices, 1);
    assert_true(c.max_bytes_per_uid == 64ull << 30 && c.chunk_bytes == 64ull << 20);
    assert_int_equal(c.engine_stall_ms, 5000);
    epd_config_fini(&c);
    epd_config_fini(&c);
}

static void precedence(void **state)
{
    (void)state;
    struct epd_config c;
    static const char file[] =
        "devices = 2\nworkers = 2\nspin-us = 2\n; comment\n\n# another = one\n";
    put_file(file, sizeof(file) - 1);
    (void)setenv("EPD_WORKERS", "3", 1);
    (void)setenv("EPD_SPIN_US", "3", 1);
    (void)setenv("EPD_DRAIN_MS", "", 1); /* empty: as if not set */
    const struct epd_config_override over[] = {{"spin-us", "4"}, {"log-level", "debug"}};
    assert_int_equal(epd_config_load(&c, g_path, over, 2, NULL), EPD_OK);
    assert_int_equal(c.devices, 2);
    assert_int_equal(c.workers, 3);
    assert_int_equal(c.spin_us, 4);
    assert_int_equal(c.drain_ms, 5000);
    assert_string_equal(c.log_level, "debug");
    epd_config_fini(&c);
    (void)unsetenv("EPD_WORKERS");
    (void)unsetenv("EPD_SPIN_US");
    (void)unsetenv("EPD_DRAIN_MS");
}

static void units_and_spelling(void **state)
{
    (void)state;
    struct epd_config c;
    assert_int_equal(load("chunk_bytes = 4M\nmax_bytes_per_uid=1t\nsocket_mode = 0600\n"
                          "socket = /a b/c ; inline comment\n  devices   =   16  \n",
                          &c, NULL),
                     EPD_OK);
    assert_true(c.chunk_bytes == 4u << 20 && c.max_bytes_per_uid == 1ull << 40);
    assert_int_equal(c.socket_mode, 0600);
    assert_string_equal(c.socket, "/a b/c");
    assert_int_equal(c.devices, 16);
    epd_config_fini(&c);
    assert_true(epd_config_is_key("log-level") && epd_config_is_key("log_level"));
    assert_false(epd_config_is_key("log"));
    assert_false(epd_config_is_key("log_levels"));
    assert_false(epd_config_is_key(""));
}

/* Each names the file, the line, the key, the value and the rule. */
static void bad_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *want[3];
    } rows[] = {
        {"devices = 2\nwokers = 3\n", {":2", "wokers", "--print-config"}},
        {"devices = 17\n", {":1", "devices is \"17\"", "1..16"}},
        {"devices = 0\n", {":1", "devices", "1..16"}},
        {"devices = -1\n", {"devices is \"-1\""}},
        {"devices = 2x\n", {"devices is \"2x\""}},
        {"devices =\n", {"devices is \"\""}},
        {"devices = 99999999999999999999999\n", {"devices"}},
        {"chunk_bytes = 99999999999T\n", {"chunk_bytes"}},
        {"chunk_bytes = 4MB\n", {"chunk_bytes"}},
        {"socket_mode = 0888\n", {"socket_mode is \"0888\"", "octal"}},
        {"backend = gpu\n", {"backend is \"gpu\"", "auto|host|cuda"}},
        {"backend = auto|host\n", {"backend"}},
        {"backend =\n", {"backend"}},
        {"devices = 2\n [epd]\n", {":2", "sections"}},
        {"\n\njust words\n", {":3", "key = value"}},
        {"= 3\n", {":1"}},
    };
    for (size_t i = 0; i < EPD_ARRAY_LEN(rows); i++) {
        struct epd_config c;
        struct epd_error err = {.message = ""};
        if (load(rows[i].text, &c, &err) != EPD_EINVAL)
            fail_msg("accepted: %s", rows[i].text);
        for (size_t j = 0; j < 3 && rows[i].want[j] != NULL; j++)
            if (strstr(err.message, rows[i].want[j]) == NULL)
                fail_msg("\"%s\" is not in \"%s\"", rows[i].want[j], err.message);
        epd_config_fini(&c);
    }
}

static void bad_bytes_and_long_lines(void **state)
{
    (void)state;
    struct epd_config c;
    struct epd_error err;
    char line[600];
    put_file("devices = 2\0 3\n", 15);
    assert_int_equal(epd_config_load(&c, g_path, NULL, 0, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "zero byte"));
    /* A long comment is one comment, a long setting is refused and not cut. */
    (void)snprintf(line, sizeof(line), "#%0300d devices = 9\n", 0);
    assert_int_equal(load(line, &c, &err), EPD_OK);
    assert_int_equal(c.devices, 1);
    epd_config_fini(&c);
    (void)snprintf(line, sizeof(line), "node_name = %0300d\n", 0);
    assert_int_equal(load(line, &c, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "at most 199"));
    assert_int_equal(load("devices = 3", &c, &err), EPD_OK); /* no newline at the end */
    assert_int_equal(c.devices, 3);
    epd_config_fini(&c);
}

static void environment_and_flags_are_named(void **state)
{
    (void)state;
    struct epd_config c;
    struct epd_error err;
    (void)setenv("EPD_DEVICES", "many", 1);
    assert_int_equal(epd_config_load(&c, NULL, NULL, 0, &err), EPD_EINVAL);
    assert_string_equal(err.message, "EPD_DEVICES: devices is \"many\", must be 1..16");
    (void)unsetenv("EPD_DEVICES");
    const struct epd_config_override over = {"device", "1"};
    assert_int_equal(epd_config_load(&c, NULL, &over, 1, &err), EPD_EINVAL);
    assert_non_null(strstr(err.message, "command line: unknown key device"));
    assert_int_equal(epd_config_load(&c, "/nonexistent/epd.conf", NULL, 0, &err), EPD_ESYS);
    assert_non_null(strstr(err.message, "/nonexistent/epd.conf"));
    assert_int_equal(epd_config_load(&c, "/tmp", NULL, 0, &err), EPD_ESYS);
}

static char *print(void (*fn)(const struct epd_config *, FILE *), const struct epd_config *c)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    fn(c, f);
    assert_int_equal(fclose(f), 0);
    return text;
}
static void sample(const struct epd_config *c, FILE *f)
{
    (void)c;
    epd_config_print_sample(f);
}

static void dump_can_be_loaded_again(void **state)
{
    (void)state;
    struct epd_config a, b;
    assert_int_equal(load("devices = 5\nsocket_mode = 0640\nnode_name = n1\n", &a, NULL), EPD_OK);
    char *first = print(epd_config_dump, &a);
    assert_int_equal(load(first, &b, NULL), EPD_OK);
    char *second = print(epd_config_dump, &b);
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "socket_mode = 0640\n"));
    free(second);
    epd_config_fini(&b);
    epd_config_fini(&a);

    /* The sample is all defaults: as it stands, and with its settings enabled. */
    char *text = print(sample, NULL);
    assert_int_equal(epd_config_load(&a, NULL, NULL, 0, NULL), EPD_OK);
    free(first);
    first = print(epd_config_dump, &a);
    for (int enabled = 0; enabled < 2; enabled++) {
        for (char *at = text; enabled && (at = strstr(at, "\n# ")) != NULL; at++) {
            char word[64];
            if (sscanf(at + 3, "%63s =", word) == 1 && epd_config_is_key(word) &&
                strncmp(at + 3 + strlen(word), " = ", 3) == 0)
                memcpy(at, "\n  ", 3);
        }
        assert_int_equal(load(text, &b, NULL), EPD_OK);
        second = print(epd_config_dump, &b);
        assert_string_equal(first, second);
        free(second);
        epd_config_fini(&b);
    }
    free(text);
    free(first);
    epd_config_fini(&a);
}

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(g_path);
    return fd < 0 ? -1 : close(fd);
}
static int teardown(void **state)
{
    (void)state;
    return unlink(g_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(precedence),
        cmocka_unit_test(units_and_spelling),
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(bad_bytes_and_long_lines),
        cmocka_unit_test(environment_and_flags_are_named),
        cmocka_unit_test(dump_can_be_loaded_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
