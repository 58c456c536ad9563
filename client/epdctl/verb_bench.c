#include "client/epdctl/ctl.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/epdctl/options.h"
#include "client/epdctl/output.h"
#include "client/epdctl/replay_run.h"

/* The work points, against the running daemon; beside each the time that one thread needs to copy
 * the same wire bytes in this run (the roofline of the default engine, which has one worker). */

struct point {
    const char *name;
    uint32_t ranks, experts, topk, batch, hidden;
};
static const struct point g_points[] = {
    {"b1", 8, 64, 8, 1, 2048},
    {"b8", 8, 64, 8, 8, 2048},
    {"decode-small", 8, 64, 8, 32, 2048},
    {"decode", 8, 256, 8, 128, 7168},
};
static const char *const g_layouts[] = {"rank", "expert"};

struct figures {
    double dispatch_p50, dispatch_p99, combine_p50, combine_p99; /* us, slowest rank */
    uint64_t logical, wire;                                      /* bytes of one op, all ranks */
    double copy_us;
};

/* xorshift64*: enough for routing, and the same everywhere. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Dull;
}

/* One layer of R*B rows with K distinct experts each, as a trace file in memory. */
static int make_trace(const struct point *p)
{
    int fd = memfd_create("epdctl-bench-trace", 0);
    FILE *out = fd >= 0 ? fdopen(dup(fd), "w") : NULL;
    if (out == NULL)
        return -1;
    uint64_t state = 0x9E3779B97F4A7C15ull;
    (void)fprintf(out, "# experts=%u topk=%u layers=0\nlayer,seq,token", p->experts, p->topk);
    for (uint32_t k = 0; k < 2 * p->topk; k++)
        (void)fprintf(out, ",%c%u", k < p->topk ? 'e' : 'w', k % p->topk);
    for (uint32_t row = 0; row < p->ranks * p->batch; row++) {
        uint32_t ids[EPD_MAX_TOPK] = {0}, n = 0;
        while (n < p->topk) {
            const uint32_t id = (uint32_t)(next_random(&state) % p->experts);
            uint32_t i = 0;
            while (i < n && ids[i] != id)
                i++;
            if (i == n)
                ids[n++] = id;
        }
        (void)fprintf(out, "\n0,0,%u", row);
        for (uint32_t k = 0; k < p->topk; k++)
            (void)fprintf(out, ",%u", ids[k]);
        for (uint32_t k = 0; k < p->topk; k++)
            (void)fprintf(out, ",%u", 10000 / p->topk);
    }
    (void)fputc('\n', out);
    (void)fclose(out);
    return fd;
}

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Best of five copies of `bytes`, row by row, by this thread. */
static double copy_time(uint64_t bytes, uint64_t row)
{
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    double best = 0;
    if (from != NULL && to != NULL) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        for (unsigned i = 0; i < 5; i++) {
            const double start = now_us();
            for (uint64_t at = 0; at + row <= bytes; at += row)
                memcpy(to + at, from + at, row);
            __asm__ volatile("" ::"r"(to) : "memory");
            const double took = now_us() - start;
            best = best == 0 || took < best ? took : best;
        }
    }
    free(from);
    free(to);
    return best;
}

static double worst(double a, uint32_t us10)
{
    return us10 / 10.0 > a ? us10 / 10.0 : a;
}

static void sum_up(const struct replay_plan *plan, const struct replay_result *results,
                   struct figures *out)
{
    const uint64_t row = (uint64_t)plan->hidden * oracle_bytes(plan->dtype);
    memset(out, 0, sizeof(*out));
    for (uint32_t c = 0; c < plan->clients; c++) {
        const struct replay_result *r = &results[c];
        out->logical += r->selections * row;
        out->wire += r->rows * row;
        for (uint32_t i = 0; i < r->n_ranks; i++) {
            out->dispatch_p50 = worst(out->dispatch_p50, r->dispatch_us10[i]);
            out->dispatch_p99 = worst(out->dispatch_p99, r->dispatch_p99[i]);
            out->combine_p50 = worst(out->combine_p50, r->combine_us10[i]);
            out->combine_p99 = worst(out->combine_p99, r->combine_p99[i]);
        }
    }
    out->copy_us = copy_time(out->wire, row);
}

struct settings {
    uint32_t clients, iterations;
};

static enum epd_status run_point(struct ctl *ctl, const struct point *p, const char *layout,
                                 const struct settings *s, struct figures *out,
                                 struct epd_error *err)
{
    struct replay_plan *plan = calloc(1, sizeof(*plan));
    struct replay_result *results = calloc(REPLAY_CLIENTS_MAX, sizeof(*results));
    char path[64], text[6][16];
    const int fd = make_trace(p);
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    const uint32_t numbers[] = {p->ranks, p->batch, p->hidden, s->clients};
    for (unsigned i = 0; i < 4; i++)
        (void)snprintf(text[i], sizeof(text[i]), "%u", numbers[i]);
    char *argv[] = {(char *)(uintptr_t) "bench",
                    path,
                    (char *)(uintptr_t) "--ranks",
                    text[0],
                    (char *)(uintptr_t) "--batch",
                    text[1],
                    (char *)(uintptr_t) "--hidden",
                    text[2],
                    (char *)(uintptr_t) "--clients",
                    text[3],
                    (char *)(uintptr_t) "--layout",
                    (char *)(uintptr_t)layout,
                    NULL};
    struct ctl sub = *ctl;
    sub.argv = argv;
    sub.argc = (int)(sizeof(argv) / sizeof(argv[0])) - 1;
    enum epd_status status = EPD_EINTERNAL;
    optind = 1;
    if (plan != NULL && results != NULL && fd >= 0 && replay_plan_parse(&sub, plan) == CTL_OK) {
        status = replay_loop(&sub, plan, s->iterations, results, err);
        if (status == EPD_OK)
            sum_up(plan, results, out);
        replay_plan_free(plan);
    }
    if (fd >= 0)
        (void)close(fd);
    free(results);
    free(plan);
    return status;
}

struct report {
    struct ctl *ctl;
    bool csv;
    json_t *rows;
    struct table *table;
};

static void report_row(struct report *r, const struct point *p, const char *layout,
                       const struct figures *f)
{
    if (r->csv)
        (void)printf("%s,%s,%u,%u,%u,%u,%u,%.1f,%.1f,%.1f,%.1f,%llu,%llu,%.1f\n", p->name, layout,
                     p->ranks, p->experts, p->topk, p->batch, p->hidden, f->dispatch_p50,
                     f->dispatch_p99, f->combine_p50, f->combine_p99,
                     (unsigned long long)f->logical, (unsigned long long)f->wire, f->copy_us);
    else if (r->ctl->json)
        (void)json_array_append_new(
            r->rows,
            json_pack("{s:s, s:s, s:i, s:i, s:i, s:{s:f, s:f}, s:{s:f, s:f}, s:I, s:I, s:f}",
                      "point", p->name, "layout", layout, "ranks", (int)p->ranks, "batch",
                      (int)p->batch, "hidden", (int)p->hidden, "dispatch_us", "p50",
                      f->dispatch_p50, "p99", f->dispatch_p99, "combine_us", "p50", f->combine_p50,
                      "p99", f->combine_p99, "logical_bytes", (json_int_t)f->logical, "wire_bytes",
                      (json_int_t)f->wire, "copy_us", f->copy_us));
    else {
        char wire[32];
        table_cell(r->table, "%s", p->name);
        table_cell(r->table, "%s", layout);
        table_cell(r->table, "%.1f", f->dispatch_p50);
        table_cell(r->table, "%.1f", f->dispatch_p99);
        table_cell(r->table, "%.1f", f->combine_p50);
        table_cell(r->table, "%.1f", f->combine_p99);
        table_cell(r->table, "%s", format_bytes(f->wire, wire, sizeof(wire)));
        table_cell(r->table, "%.1f", f->copy_us);
        table_cell(r->table, "%.0f %%", 100.0 * f->copy_us / f->dispatch_p50);
    }
}

static int run(struct ctl *ctl)
{
    static const struct option options[] = {{"clients", 1, NULL, 'c'},
                                            {"iterations", 1, NULL, 'i'},
                                            {"csv", 0, NULL, 's'},
                                            {"point", 1, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    static const char *const header[] = {"POINT",       "LAYOUT", "DISPATCH p50", "p99",
                                         "COMBINE p50", "p99",    "WIRE",         "COPY us",
                                         "OF COPY",     NULL};
    struct settings s = {.clients = 2, .iterations = 100};
    const char *only = NULL;
    struct report r = {.ctl = ctl, .rows = json_array()};
    opterr = 0;
    for (int c; (c = getopt_long(ctl->argc, ctl->argv, "", options, NULL)) != -1;) {
        if ((c == 'c' && !parse_u32(optarg, 1, 8, &s.clients)) ||
            (c == 'i' && !parse_u32(optarg, 1, 100000, &s.iterations)) || c == '?')
            return ctl_usage(ctl, "bad option or value \"%s\"", ctl->argv[optind - 1]);
        r.csv = r.csv || c == 's';
        only = c == 'p' ? optarg : only;
    }
    if (r.csv)
        (void)puts("point,layout,ranks,experts,topk,batch,hidden,dispatch_p50_us,dispatch_p99_us,"
                   "combine_p50_us,combine_p99_us,logical_bytes,wire_bytes,copy_us");
    else if (!ctl->json)
        r.table = table_create(header);
    struct epd_error err = {.status = EPD_OK};
    for (size_t i = 0; i < sizeof(g_points) / sizeof(g_points[0]); i++)
        for (size_t k = 0; k < 2; k++) {
            struct figures f;
            if (only != NULL && strcmp(only, g_points[i].name) != 0)
                continue;
            if (run_point(ctl, &g_points[i], g_layouts[k], &s, &f, &err) != EPD_OK) {
                json_decref(r.rows);
                table_print(r.table);
                return ctl_report(ctl, &err);
            }
            report_row(&r, &g_points[i], g_layouts[k], &f);
        }
    if (ctl->json)
        ctl_json(ctl, json_pack("{s:i, s:O}", "clients", (int)s.clients, "points", r.rows));
    json_decref(r.rows);
    table_print(r.table);
    return CTL_OK;
}

const struct ctl_verb ctl_verb_bench = {
    .name = "bench",
    .args = "[options]",
    .summary = "Latency of the standard work points, with the copy roofline of the same run",
    .run = run,
    .help =
        "\n  --clients C     client processes that the 8 seats are spread over (2)\n"
        "  --iterations N  timed dispatch + combine pairs a point (100), after 10 warm-ups\n"
        "  --point NAME    b1 | b8 | decode-small | decode\n"
        "  --csv           comma-separated values\n\n"
        "Latency: submit to completion, client side, slowest rank. COPY: one thread copies the\n"
        "wire bytes of one op.\n",
};
