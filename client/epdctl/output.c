#include "client/epdctl/output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct table {
    unsigned columns;
    size_t cells, cap;
    char **cell; /* owned strings */
};

static void add(struct table *t, const char *text)
{
    if (t->cells == t->cap) {
        const size_t cap = t->cap ? t->cap * 2 : 64;
        char **grown = realloc(t->cell, cap * sizeof(*grown));
        if (grown == NULL)
            return;
        t->cell = grown;
        t->cap = cap;
    }
    char *copy = strdup(text);
    if (copy != NULL)
        t->cell[t->cells++] = copy;
}

struct table *table_create(const char *const *header)
{
    struct table *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    while (header[t->columns] != NULL && t->columns < TABLE_COLUMNS_MAX)
        add(t, header[t->columns++]);
    return t;
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char text[256];
    va_list args;
    if (t == NULL)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    add(t, text[0] != 0 ? text : "-");
}

void table_print(struct table *t)
{
    size_t width[TABLE_COLUMNS_MAX] = {0};
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->cells; i++)
        if (strlen(t->cell[i]) > width[i % t->columns])
            width[i % t->columns] = strlen(t->cell[i]);
    for (size_t i = 0; i < t->cells; i++) {
        const unsigned column = (unsigned)(i % t->columns);
        if (column + 1 == t->columns)
            (void)printf("%s\n", t->cell[i]);
        else
            (void)printf("%-*s  ", (int)width[column], t->cell[i]);
        free(t->cell[i]);
    }
    free(t->cell);
    free(t);
}

const char *format_bytes(uint64_t bytes, char *buf, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    unsigned u = 0;
    while (value >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        u++;
    }
    (void)snprintf(buf, len, u == 0 ? "%.0f %s" : "%.1f %s", value, units[u]);
    return buf;
}

const char *format_duration(uint64_t ms, char *buf, size_t len)
{
    const uint64_t s = ms / 1000;
    if (ms < 10000)
        (void)snprintf(buf, len, "%" PRIu64 ".%" PRIu64 " s", s, ms % 1000 / 100);
    else if (s < 120)
        (void)snprintf(buf, len, "%" PRIu64 " s", s);
    else if (s < 7200)
        (void)snprintf(buf, len, "%" PRIu64 " min", s / 60);
    else
        (void)snprintf(buf, len, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    return buf;
}

const char *dtype_name(uint32_t dtype)
{
    return dtype == 1 ? "bf16" : dtype == 2 ? "fp16" : dtype == 3 ? "fp32" : "?";
}
const char *layout_name(uint32_t layout)
{
    return layout == 1 ? "expert" : layout == 2 ? "rank" : layout == 3 ? "flat" : "?";
}
const char *mode_name(uint32_t mode)
{
    return mode == 1 ? "ll" : mode == 2 ? "ht" : "?";
}
