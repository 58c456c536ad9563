/* Recorded routing (tests/data/README.md has the format): `#` comments, of which one names
 * experts= and topk=; a header line; then one row a token and layer, rows of a layer together. */
#ifndef EPDCTL_TRACE_H
#define EPDCTL_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/errors.h"

#define TRACE_LAYERS_MAX 256u

struct trace_layer {
    uint32_t layer; /* number in the model */
    uint32_t rows;
    int64_t *ids;   /* [rows, K] */
    float *weights; /* [rows, K], (float)n / 10000.0f */
    uint32_t cap;
};

struct trace {
    uint32_t experts, topk;
    uint32_t n_layers;
    struct trace_layer layers[TRACE_LAYERS_MAX];
};

/* Parse text[len]; `name` stands in messages. Every malformed line is an error with its number, the
 * field, the value and the rule. *out is empty on failure. */
enum epd_status trace_parse(const char *name, const char *text, size_t len, struct trace *out,
                            struct epd_error *err);
enum epd_status trace_load(const char *path, struct trace *out, struct epd_error *err);
void trace_free(struct trace *trace);
/* NULL: the trace has no such layer. */
const struct trace_layer *trace_find(const struct trace *trace, uint32_t layer);

#endif
