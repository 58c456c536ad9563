#define EPD_LOG_COMPONENT "fault"
#include "daemon/base/fault.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define MAX_FAULTS 16u

struct fault {
    char name[48];
    unsigned long first, last; /* passages that fail */
    unsigned long passed;
};
static struct fault g_faults[MAX_FAULTS];
static unsigned g_n_faults;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

/* "name", "name:n" or "name:n-" of the given length. */
static bool parse(const char *text, size_t len, struct fault *out)
{
    const char *colon = memchr(text, ':', len);
    const size_t name_len = colon != NULL ? (size_t)(colon - text) : len;
    if (name_len == 0 || name_len >= sizeof(out->name))
        return false;
    *out = (struct fault){.first = 1, .last = ~0ul};
    memcpy(out->name, text, name_len);
    if (colon == NULL)
        return true;
    char *end;
    if (!isdigit((unsigned char)colon[1]))
        return false;
    out->first = strtoul(colon + 1, &end, 10);
    if (*end == '-')
        end++;
    else
        out->last = out->first;
    return out->first > 0 && end == text + len;
}

static void set(const char *faults)
{
    g_n_faults = 0;
    while (faults != NULL && *faults != 0) {
        const size_t len = strcspn(faults, ",");
        struct fault fault;
        if (g_n_faults < MAX_FAULTS && parse(faults, len, &fault))
            g_faults[g_n_faults++] = fault;
        else if (len > 0)
            log_warn("ignored entry of EPD_FAULTS: \"%.*s\", must be name[:nth[-]]", (int)len,
                     faults);
        faults += len + (faults[len] == ',');
    }
}

static void load(void)
{
    set(getenv("EPD_FAULTS"));
}

void epd_fault_set(const char *faults)
{
    (void)pthread_once(&g_once, load); /* so that a later point does not load over this */
    set(faults);
}

bool epd_fault_hit(const char *name)
{
    (void)pthread_once(&g_once, load); /* fails only for an invalid once object */
    for (unsigned i = 0; i < g_n_faults; i++) {
        struct fault *f = &g_faults[i];
        if (strcmp(f->name, name) != 0)
            continue;
        const unsigned long n = __atomic_add_fetch(&f->passed, 1, __ATOMIC_RELAXED);
        if (n >= f->first && n <= f->last)
            return true;
    }
    return false;
}
