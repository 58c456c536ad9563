#include "client/epdctl/trace.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/epdctl/fail.h"
#include "proto/layout.h"

#define WEIGHT_UNIT 10000.0f

struct parser {
    const char *name;
    const char *at, *end; /* of the line in hand */
    unsigned line;
    bool seen_header;
    struct trace *trace;
    struct epd_error *err;
};

static enum epd_status bad(struct parser *p, const char *what, const char *rule)
{
    int len = (int)(p->end - p->at);
    return ctl_fail(p->err, EPD_EINVAL, "%s:%u: %s is \"%.*s\": %s", p->name, p->line, what,
                    len > 40 ? 40 : len, p->at, rule);
}

/* A decimal number up to `max`, then `stop` or the line's end. */
static bool number(struct parser *p, uint64_t max, uint64_t *out)
{
    uint64_t n = 0;
    const char *c = p->at;
    while (c < p->end && isdigit((unsigned char)*c) && n <= max)
        n = n * 10 + (uint64_t)(*c++ - '0');
    if (c == p->at || n > max || (c < p->end && *c != ','))
        return false;
    p->at = c < p->end ? c + 1 : c;
    *out = n;
    return true;
}

static bool find_word(const struct parser *p, const char *key, uint32_t *out)
{
    const size_t n = strlen(key);
    for (const char *c = p->at; c + n < p->end; c++) {
        if (memcmp(c, key, n) != 0 || (c > p->at && c[-1] != ' '))
            continue;
        uint32_t value = 0;
        for (c += n; c < p->end && isdigit((unsigned char)*c) && value < 100000; c++)
            value = value * 10 + (uint32_t)(*c - '0');
        *out = value;
        return true;
    }
    return false;
}

static enum epd_status comment(struct parser *p)
{
    struct trace *t = p->trace;
    if (find_word(p, "experts=", &t->experts) && (t->experts < 1 || t->experts > EPD_MAX_EXPERTS))
        return bad(p, "experts", "must be 1..1024");
    if (find_word(p, "topk=", &t->topk) && (t->topk < 1 || t->topk > EPD_MAX_TOPK))
        return bad(p, "topk", "must be 1..32");
    return EPD_OK;
}

static enum epd_status header(struct parser *p)
{
    char want[1024];
    size_t n = (size_t)snprintf(want, sizeof(want), "layer,seq,token");
    if (p->trace->experts == 0 || p->trace->topk == 0)
        return bad(p, "the header", "a comment before it must give experts= and topk=");
    for (uint32_t k = 0; k < p->trace->topk; k++)
        n += (size_t)snprintf(want + n, sizeof(want) - n, ",e%u", k);
    for (uint32_t k = 0; k < p->trace->topk; k++)
        n += (size_t)snprintf(want + n, sizeof(want) - n, ",w%u", k);
    if ((size_t)(p->end - p->at) != n || memcmp(p->at, want, n) != 0)
        return bad(p, "the header", "must be layer,seq,token,e0..,w0.. with topk of each");
    p->seen_header = true;
    return EPD_OK;
}

static enum epd_status open_layer(struct parser *p, uint32_t number_, struct trace_layer **out)
{
    struct trace *t = p->trace;
    if (t->n_layers > 0 && t->layers[t->n_layers - 1].layer == number_) {
        *out = &t->layers[t->n_layers - 1];
        return EPD_OK;
    }
    if (trace_find(t, number_) != NULL)
        return bad(p, "layer", "the rows of a layer must stand together");
    if (t->n_layers == TRACE_LAYERS_MAX)
        return bad(p, "layer", "more than 256 layers");
    *out = &t->layers[t->n_layers++];
    (*out)->layer = number_;
    return EPD_OK;
}

static bool grow(struct trace_layer *l, uint32_t topk)
{
    if (l->rows < l->cap)
        return true;
    const uint32_t cap = l->cap ? l->cap * 2 : 1024;
    int64_t *ids = realloc(l->ids, (size_t)cap * topk * sizeof(*ids));
    if (ids != NULL)
        l->ids = ids;
    float *weights = realloc(l->weights, (size_t)cap * topk * sizeof(*weights));
    if (weights != NULL)
        l->weights = weights;
    if (ids == NULL || weights == NULL)
        return false;
    l->cap = cap;
    return true;
}

static enum epd_status row(struct parser *p)
{
    struct trace *t = p->trace;
    struct trace_layer *l = NULL;
    uint64_t n;
    if (!number(p, 100000, &n))
        return bad(p, "layer", "must be a number");
    enum epd_status status = open_layer(p, (uint32_t)n, &l);
    if (status != EPD_OK)
        return status;
    if (!number(p, UINT32_MAX, &n) || !number(p, UINT32_MAX, &n))
        return bad(p, "seq or token", "must be a number");
    if (!grow(l, t->topk))
        return ctl_fail(p->err, EPD_ENOMEM, "%s: no memory for line %u", p->name, p->line);
    for (uint32_t k = 0; k < t->topk; k++) {
        if (!number(p, t->experts - 1, &n))
            return bad(p, "an expert id", "must be a number below experts");
        l->ids[(size_t)l->rows * t->topk + k] = (int64_t)n;
    }
    for (uint32_t k = 0; k < t->topk; k++) {
        const bool last = k + 1 == t->topk;
        if ((last && memchr(p->at, ',', (size_t)(p->end - p->at)) != NULL) ||
            !number(p, 1000000, &n))
            return bad(p, "a weight", "must be a number, and the last field the last weight");
        l->weights[(size_t)l->rows * t->topk + k] = (float)n / WEIGHT_UNIT;
    }
    l->rows++;
    return EPD_OK;
}

enum epd_status trace_parse(const char *name, const char *text, size_t len, struct trace *out,
                            struct epd_error *err)
{
    struct parser p = {.name = name, .trace = out, .err = err};
    enum epd_status status = EPD_OK;
    memset(out, 0, sizeof(*out));
    for (const char *at = text; status == EPD_OK && at < text + len;) {
        const char *nl = memchr(at, '\n', (size_t)(text + len - at));
        p.at = at;
        p.end = nl != NULL ? nl : text + len;
        at = p.end + 1;
        if (p.end > p.at && p.end[-1] == '\r')
            p.end--;
        p.line++;
        if (p.at == p.end)
            continue;
        status = *p.at == '#' && !p.seen_header ? comment(&p)
                 : *p.at == '#'                 ? EPD_OK
                 : p.seen_header                ? row(&p)
                                                : header(&p);
    }
    if (status == EPD_OK && out->n_layers == 0)
        status = ctl_fail(err, EPD_EINVAL, "%s: no rows", name);
    if (status != EPD_OK)
        trace_free(out);
    return status;
}

static char *read_all(FILE *in, size_t *len_out)
{
    size_t len = 0, cap = 1u << 16;
    char *text = malloc(cap);
    while (text != NULL) {
        len += fread(text + len, 1, cap - len, in);
        if (len < cap)
            break;
        char *grown = realloc(text, cap * 2);
        if (grown == NULL) {
            free(text);
            return NULL;
        }
        text = grown;
        cap *= 2;
    }
    *len_out = len;
    return text;
}

enum epd_status trace_load(const char *path, struct trace *out, struct epd_error *err)
{
    size_t len = 0;
    memset(out, 0, sizeof(*out));
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return ctl_fail(err, EPD_ENOENT, "trace %s: %s", path, strerror(errno));
    char *text = read_all(in, &len);
    const bool failed = ferror(in) != 0;
    (void)fclose(in);
    enum epd_status status = text == NULL ? ctl_fail(err, EPD_ENOMEM, "trace %s: no memory", path)
                             : failed ? ctl_fail(err, EPD_ESYS, "trace %s: cannot be read", path)
                                      : trace_parse(path, text, len, out, err);
    free(text);
    return status;
}

void trace_free(struct trace *trace)
{
    for (uint32_t i = 0; i < trace->n_layers; i++) {
        free(trace->layers[i].ids);
        free(trace->layers[i].weights);
    }
    memset(trace, 0, sizeof(*trace));
}

const struct trace_layer *trace_find(const struct trace *trace, uint32_t layer)
{
    for (uint32_t i = 0; i < trace->n_layers; i++)
        if (trace->layers[i].layer == layer)
            return &trace->layers[i];
    return NULL;
}
