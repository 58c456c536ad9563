#include "client/epdctl/ctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/epdctl/output.h"
#include "client/epdctl/replay_run.h"
#include "proto/control.pb-c.h"

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Nearest-rank percentile in us; sorts. */
static double percentile(uint32_t *us10, uint64_t n, double p)
{
    if (n == 0)
        return 0;
    qsort(us10, n, sizeof(*us10), by_value);
    uint64_t at = (uint64_t)(p * (double)n);
    return us10[at < n ? at : n - 1] / 10.0;
}

static void get_backend(struct ctl *ctl, char *out, size_t len)
{
    const Epd__V1__VersionRequest request = EPD__V1__VERSION_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    (void)snprintf(out, len, "unknown");
    if (ctl_call(ctl, "GetVersion", &request.base, &epd__v1__version_reply__descriptor, &m, NULL) !=
        EPD_OK)
        return;
    (void)snprintf(out, len, "%s", ((const Epd__V1__VersionReply *)(const void *)m)->backend);
    protobuf_c_message_free_unpacked(m, NULL);
}

static void print_json(struct ctl *ctl, const struct replay_plan *p, struct replay_report *r,
                       const struct epd_error *err)
{
    char backend[32];
    const uint64_t row = (uint64_t)p->hidden * oracle_bytes(p->dtype);
    const uint64_t logical = 2 * r->selections * row, wire = 2 * r->rows * row;
    json_t *repeats = json_array();
    get_backend(ctl, backend, sizeof(backend));
    for (uint32_t i = 0; i < r->n_repeats; i++)
        (void)json_array_append_new(
            repeats, json_pack("{s:i, s:i, s:s}", "layer", (int)r->repeats[i].layer, "step",
                               (int)r->repeats[i].step, "why", r->repeats[i].why));
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:I, s:f, s:{s:f, s:f}, s:{s:f, s:f}}", "ops",
                  (json_int_t)r->ops, "tokens", (json_int_t)r->tokens, "rows", (json_int_t)r->rows,
                  "mismatches", (json_int_t)r->mismatches, "seconds", r->seconds, "dispatch_us",
                  "p50", percentile(r->dispatch_us10, r->n_latencies, 0.5), "p99",
                  percentile(r->dispatch_us10, r->n_latencies, 0.99), "combine_us", "p50",
                  percentile(r->combine_us10, r->n_latencies, 0.5), "p99",
                  percentile(r->combine_us10, r->n_latencies, 0.99));
    (void)json_object_update_new(
        root, json_pack("{s:I, s:I, s:s, s:s, s:s, s:s, s:o}", "logical_bytes", (json_int_t)logical,
                        "wire_bytes", (json_int_t)wire, "backend", backend, "mode",
                        mode_name(p->mode), "layout", layout_name(p->layout), "dtype",
                        dtype_name(p->dtype), "repeats", repeats));
    if (r->first_mismatch[0] != 0)
        (void)json_object_set_new(root, "first_mismatch", json_string(r->first_mismatch));
    if (err->status != EPD_OK)
        (void)json_object_set_new(root, "error",
                                  json_pack("{s:s, s:s}", "status", epd_status_string(err->status),
                                            "message", err->message));
    ctl_json(ctl, root);
}

static void print_text(const struct replay_plan *p, struct replay_report *r)
{
    char logical[32], wire[32];
    const uint64_t row = (uint64_t)p->hidden * oracle_bytes(p->dtype);
    for (uint32_t i = 0; i < r->n_repeats; i++)
        (void)printf("repeated: layer %u step %u: %s\n", r->repeats[i].layer, r->repeats[i].step,
                     r->repeats[i].why);
    (void)printf(
        "dispatch p50 %.1f us p99 %.1f us, combine p50 %.1f us p99 %.1f us (client side)\n",
        percentile(r->dispatch_us10, r->n_latencies, 0.5),
        percentile(r->dispatch_us10, r->n_latencies, 0.99),
        percentile(r->combine_us10, r->n_latencies, 0.5),
        percentile(r->combine_us10, r->n_latencies, 0.99));
    (void)printf("%s logical, %s on the wire, both ways\n",
                 format_bytes(2 * r->selections * row, logical, sizeof(logical)),
                 format_bytes(2 * r->rows * row, wire, sizeof(wire)));
    if (r->first_mismatch[0] != 0)
        (void)printf("first mismatch: %s\n", r->first_mismatch);
    (void)printf("replay: ops=%" PRIu64 " tokens=%" PRIu64 " rows=%" PRIu64 " mismatches=%" PRIu64
                 " seconds=%.2f layout=%s%s\n",
                 r->ops, r->tokens, r->rows, r->mismatches, r->seconds, layout_name(p->layout),
                 p->verify ? "" : " (not verified)");
}

static int run(struct ctl *ctl)
{
    struct replay_plan *plan = calloc(1, sizeof(*plan));
    struct replay_report report;
    struct epd_error err = {.status = EPD_OK};
    if (plan == NULL)
        return CTL_FAILED;
    int code = replay_plan_parse(ctl, plan);
    if (code != CTL_OK) {
        free(plan);
        return code;
    }
    const enum epd_status status = replay_run(ctl, plan, &report, &err);
    if (status != EPD_OK)
        (void)fprintf(stderr, "epdctl replay: %s\n", err.message);
    if (ctl->json)
        print_json(ctl, plan, &report, &err);
    else if (status == EPD_OK)
        print_text(plan, &report);
    code = status != EPD_OK ? ctl_exit_of(status) : report.mismatches > 0 ? CTL_FAILED : CTL_OK;
    replay_report_free(&report);
    replay_plan_free(plan);
    free(plan);
    return code;
}

static int run_worker(struct ctl *ctl)
{
    struct replay_plan *plan = calloc(1, sizeof(*plan));
    int code = plan == NULL ? CTL_FAILED : replay_plan_parse(ctl, plan);
    if (code == CTL_OK) {
        code = plan->worker < 0 || plan->fd < 0 || plan->group == NULL
                   ? ctl_usage(ctl, "is started by epdctl replay")
                   : replay_worker_run(ctl, plan);
        replay_plan_free(plan);
    }
    free(plan);
    return code;
}

const struct ctl_verb ctl_verb_replay = {
    .name = "replay",
    .args = "TRACE [options]",
    .summary = "Drive the daemon with recorded routing and check every byte",
    .run = run,
    .help = "\n  --layers 1,8       layers of the trace (default all)\n"
            "  --ranks R          seats (8)\n"
            "  --batch B          tokens a rank and step (128)\n"
            "  --hidden H         elements a token (2048)\n"
            "  --dtype T          bf16 | fp16 | fp32\n"
            "  --mode ll          low latency (ht comes later)\n"
            "  --layout L         expert | rank\n"
            "  --steps N          steps a layer (default: to the layer's end)\n"
            "  --clients C        client processes (4)\n"
            "  --verify           compare everything with the naive oracle\n"
            "  --dump DIR         write what was received as .npy files\n"
            "  --placement d,...  device of each rank (default: the daemon's rule)\n"
            "  --kill-client C@S  kill client C in the middle of step S, replace it, repeat\n"
            "  --group NAME       name of the group (default: made up)\n",
};
const struct ctl_verb ctl_verb_replay_worker = {
    .name = "replay-worker", .args = "", .summary = "internal", .run = run_worker, .hidden = true};
