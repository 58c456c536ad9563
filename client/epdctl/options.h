/* The options that describe a group's shape, common to several verbs. */
#ifndef EPDCTL_OPTIONS_H
#define EPDCTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct shape_options {
    uint32_t ranks, experts, batch, topk, hidden, dtype, mode, layout;
};
#define SHAPE_OPTIONS_INIT                                                                         \
    {                                                                                              \
        .ranks = 8, .experts = 64, .batch = 128, .topk = 8, .hidden = 7168, .dtype = 1, .mode = 1, \
        .layout = 1                                                                                \
    }
#define SHAPE_OPTIONS_HELP                                                                         \
    "\n  --ranks R --experts E --batch B --topk K --hidden H\n"                                    \
    "  --dtype bf16|fp16|fp32  --mode ll|ht  --layout expert|rank|flat\n"

/* argv[0] is skipped. NULL, or a static text of what is wrong. */
const char *shape_options_parse(struct shape_options *out, int argc, char **argv);

/* One word or number; false: unknown. */
bool parse_dtype(const char *text, uint32_t *out);
bool parse_mode(const char *text, uint32_t *out);
bool parse_layout(const char *text, uint32_t *out);
bool parse_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out);

#endif
