#include "daemon/core/must.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/util.h"

void *epd_must_calloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    epd_assert(p != NULL);
    return p;
}

void *epd_must_copy(const void *from, size_t bytes)
{
    void *p = epd_must_calloc(bytes);
    memcpy(p, from, bytes);
    return p;
}
