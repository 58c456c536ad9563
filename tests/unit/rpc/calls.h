/* Calling a server through libepd-rpc's transport, loaded as libepd loads it. */
#ifndef EPD_TEST_RPC_CALLS_H
#define EPD_TEST_RPC_CALLS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/rpc/table.h"
#include "proto/errors.h"

#define SECOND 1000000000ll

static inline int slow(void)
{
    const char *text = getenv("EPD_TEST_SLOW");
    return text != NULL && atoi(text) > 0 ? atoi(text) : 1;
}

static inline int count_of(const int *counter)
{
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}
static inline void count_up(int *counter, int by)
{
    __atomic_add_fetch(counter, by, __ATOMIC_SEQ_CST);
}
#define EVENTUALLY(cond)                                                                           \
    do {                                                                                           \
        for (int i_ = 0; i_ < 500 * slow() && !(cond); i_++)                                       \
            usleep(10000);                                                                         \
        assert_true(cond);                                                                         \
    } while (0)

static inline const struct epd_rpc_table *table(void)
{
    static const struct epd_rpc_table *t;
    char path[512];
    const char *lib = getenv("EPD_LIB_DIR");
    if (t != NULL)
        return t;
    snprintf(path, sizeof(path), "%s/libepd-rpc.so", lib != NULL ? lib : "build/lib");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fail_msg("%s", dlerror());
    const struct epd_rpc_table *(*get)(void);
    *(void **)&get = dlsym(handle, EPD_RPC_TABLE_SYMBOL);
    t = get();
    return t;
}
static inline struct epd_rpc_conn *open_path(const char *path)
{
    struct epd_rpc_conn *conn = NULL;
    char err[256];
    assert_int_equal(table()->open(path, &conn, err, sizeof(err)), EPD_OK);
    return conn;
}
/* out (may be NULL) and err: 256 bytes each. */
static inline int call(struct epd_rpc_conn *conn, const char *method, const char *text, int64_t ms,
                       char *out, char *err)
{
    uint8_t *resp = NULL;
    size_t len = 0;
    err[0] = 0;
    const int status = table()->unary(conn, method, (const uint8_t *)text, strlen(text),
                                      ms * 1000000, &resp, &len, err, 256);
    if (status == EPD_OK && out != NULL)
        snprintf(out, 256, "%.*s", (int)len, (const char *)resp);
    table()->free_bytes(resp);
    return status;
}
static inline unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

#endif
