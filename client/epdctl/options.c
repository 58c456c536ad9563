#include "client/epdctl/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static bool word(const char *text, const char *const *words, uint32_t *out)
{
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i + 1;
            return true;
        }
    }
    return false;
}

bool parse_dtype(const char *text, uint32_t *out)
{
    return word(text, (const char *const[]){"bf16", "fp16", "fp32", NULL}, out);
}
bool parse_mode(const char *text, uint32_t *out)
{
    return word(text, (const char *const[]){"ll", "ht", NULL}, out);
}
bool parse_layout(const char *text, uint32_t *out)
{
    return word(text, (const char *const[]){"expert", "rank", "flat", NULL}, out);
}

bool parse_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end;
    errno = 0;
    const unsigned long n = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || text[0] == '-' || n < min || n > max)
        return false;
    *out = (uint32_t)n;
    return true;
}

const char *shape_options_parse(struct shape_options *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"ranks", 1, NULL, 'r'}, {"experts", 1, NULL, 'e'}, {"batch", 1, NULL, 'b'},
        {"topk", 1, NULL, 'k'},  {"hidden", 1, NULL, 'h'},  {"dtype", 1, NULL, 'd'},
        {"mode", 1, NULL, 'm'},  {"layout", 1, NULL, 'l'},  {NULL, 0, NULL, 0},
    };
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool ok = false;
        if (c == 'd')
            ok = parse_dtype(optarg, &out->dtype);
        else if (c == 'm')
            ok = parse_mode(optarg, &out->mode);
        else if (c == 'l')
            ok = parse_layout(optarg, &out->layout);
        else if (c != '?')
            ok = parse_u32(optarg, 1, 1u << 20,
                           c == 'r'   ? &out->ranks
                           : c == 'e' ? &out->experts
                           : c == 'b' ? &out->batch
                           : c == 'k' ? &out->topk
                                      : &out->hidden);
        if (!ok)
            return c == '?' ? "unknown option, or one without its value"
                            : "a number must be 1..1048576, a word one of those in --help";
    }
    return optind < argc ? "unexpected argument" : NULL;
}
