#include "client/rpc_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fail.h"
#include "client/rpc/table.h"

#define LIBRARY "libepd-rpc.so"

/* The sanitizers' runtimes must be able to interpose; they refuse DEEPBIND. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL)
#else
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct epd_rpc_table *loaded; /* guarded by lock */

struct attempts {
    char text[200]; /* "path: why; path: why" */
    size_t used;
};

static void note(struct attempts *a, const char *path, const char *why)
{
    if (a->used >= sizeof(a->text))
        return;
    /* dlerror begins with the path as well. */
    size_t len = strlen(path);
    if (why && strncmp(why, path, len) == 0 && strncmp(why + len, ": ", 2) == 0)
        why += len + 2;
    int n = snprintf(a->text + a->used, sizeof(a->text) - a->used, "%s%s: %.60s",
                     a->used ? "; " : "", path, why ? why : "failed");
    if (n > 0)
        a->used += (size_t)n;
}

static void *try_open(const char *path, struct attempts *a)
{
    (void)dlerror(); /* clear */
    void *handle = dlopen(path, OPEN_FLAGS);
    if (!handle)
        note(a, path, dlerror());
    return handle;
}

/* The directory of the object that this code is in. */
static bool own_directory(char *buf, size_t len)
{
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1(&lock, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    /* The program itself has no name there; its argv[0] may be anything, so the kernel is asked. */
    const char *name = map->l_name && map->l_name[0] ? map->l_name : "/proc/self/exe";
    char real[PATH_MAX];
    if (!realpath(name, real))
        return false;
    char *slash = strrchr(real, '/');
    if (!slash)
        return false;
    *slash = '\0';
    int n = snprintf(buf, len, "%s", real);
    return n >= 0 && (size_t)n < len;
}

static void *open_library(struct attempts *a)
{
    const char *named = secure_getenv("EPD_RPC_LIB");
    if (named && *named)
        return try_open(named, a);

    static const char *const beside[] = {"", "/../lib"};
    char dir[PATH_MAX], path[PATH_MAX + 32];
    if (own_directory(dir, sizeof(dir))) {
        for (unsigned i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
            (void)snprintf(path, sizeof(path), "%s%s/" LIBRARY, dir, beside[i]);
            void *handle = try_open(path, a);
            if (handle)
                return handle;
        }
    }
    return try_open(LIBRARY, a);
}

/* Lock held. */
static enum epd_status load(struct epd_error *err)
{
    struct attempts a = {.used = 0};
    void *handle = open_library(&a);
    if (!handle)
        return epdc_fail(err, EPD_EUNSUPPORTED,
                         LIBRARY " not loaded (install it beside libepd, or set EPD_RPC_LIB): %s",
                         a.text);
    const struct epd_rpc_table *(*get)(void) = NULL;
    void *symbol = dlsym(handle, EPD_RPC_TABLE_SYMBOL);
    memcpy(&get, &symbol, sizeof(get)); /* POSIX; C has no cast for it */
    const struct epd_rpc_table *table = get ? get() : NULL;
    if (!table || table->abi != EPD_RPC_TABLE_ABI || table->size < sizeof(*table)) {
        (void)dlclose(handle); /* not ours; nothing of it was called */
        return epdc_fail(err, EPD_EVERSION,
                         LIBRARY " has transport ABI %u, libepd needs %u: install both from one "
                                 "release",
                         table ? table->abi : 0u, EPD_RPC_TABLE_ABI);
    }
    loaded = table; /* the handle is kept for the life of the process */
    return EPD_OK;
}

enum epd_status epdc_rpc_load(const struct epd_rpc_table **out, struct epd_error *err)
{
    pthread_mutex_lock(&lock);
    enum epd_status status = loaded ? EPD_OK : load(err);
    if (status == EPD_OK)
        *out = loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
