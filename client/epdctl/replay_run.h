/* The coordinator of `epdctl replay`. */
#ifndef EPDCTL_REPLAY_RUN_H
#define EPDCTL_REPLAY_RUN_H

#include "client/epdctl/replay.h"

#define REPLAY_REPEATS_MAX 64u

struct replay_repeat {
    uint32_t layer, step;
    char why[160];
};

struct replay_report {
    uint64_t ops; /* verified (or at least completed) seat ops: 2 * R * steps * layers */
    uint64_t tokens, rows, selections, mismatches;
    double seconds;
    uint32_t *dispatch_us10, *combine_us10; /* owned, one a seat op */
    uint64_t n_latencies, cap;
    uint32_t n_repeats;
    struct replay_repeat repeats[REPLAY_REPEATS_MAX];
    char first_mismatch[256];
};

/* Run the plan. On failure *err says why; the report holds what was done until then. */
enum epd_status replay_run(struct ctl *ctl, const struct replay_plan *plan,
                           struct replay_report *report, struct epd_error *err);
/* One loop of `iterations` over the plan's first step; results[clients] as the clients sent them.
 */
enum epd_status replay_loop(struct ctl *ctl, const struct replay_plan *plan, uint32_t iterations,
                            struct replay_result *results, struct epd_error *err);
void replay_report_free(struct replay_report *report);

#endif
