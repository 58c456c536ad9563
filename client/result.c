/* epd_result_describe: one sentence from a completion. */
#include "client/epd.h"

#include <stdarg.h>
#include <stdio.h>

#include "proto/ring.h"

struct text {
    char *buf;
    size_t len, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *fmt, ...)
{
    if (t->used >= t->len)
        return;

    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->buf + t->used, t->len - t->used, fmt, args);
    va_end(args);
    if (n > 0)
        t->used += (size_t)n;
}

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case EPD_OP_DISPATCH:
        return "dispatch";
    case EPD_OP_COMBINE:
        return "combine";
    case EPD_OP_POST_RECEIVE:
        return "post_receive";
    case EPD_OP_RELEASE:
        return "release";
    default:
        return "op";
    }
}

static const char *phase_name(uint32_t phase)
{
    static const char *const names[] = {"none",   "validate", "hold",  "counts",
                                        "credit", "rows",     "ready", "release"};
    return phase < sizeof(names) / sizeof(names[0]) ? names[phase] : "unknown";
}

static const char *field_name(uint32_t field)
{
    static const char *const names[] = {"none",   "abi",        "kind", "flags",    "op",
                                        "epoch",  "generation", "b",    "b_offset", "notify_offset",
                                        "in_row", "out_row",    "set",  "ids",      "reserved"};
    return field < sizeof(names) / sizeof(names[0]) ? names[field] : "unknown";
}

/* What the rank at fault did not do while this seat was in `phase`. */
static const char *phase_missing(uint32_t phase)
{
    switch (phase) {
    case EPD_PHASE_COUNTS:
        return "did not submit its dispatch within its deadline";
    case EPD_PHASE_CREDIT:
        return "did not offer a receive area within its deadline";
    case EPD_PHASE_ROWS:
        return "did not send its rows within its deadline";
    case EPD_PHASE_READY:
        return "did not submit its combine within its deadline";
    case EPD_PHASE_HOLD:
    case EPD_PHASE_RELEASE:
        return "did not finish reading within its deadline";
    default:
        return "was late";
    }
}

static const char *remedy(const struct epd_result *r)
{
    switch (r->status) {
    case EPD_EORDER:
        return "submit the epoch named, or take epochs from epd_lease_epoch";
    case EPD_EUNRELEASED:
        return "combine or release an older dispatch first";
    case EPD_EMISMATCH:
        return "all ranks must submit the same ops with the same tag in the same order";
    case EPD_EROUTING:
        return "ids must be -1 or below the group's number of experts";
    default:
        break;
    }
    switch (epd_status_scope_of(r->status)) {
    case EPD_SCOPE_REQUEST:
        return r->epoch_consumed ? "go on with the next epoch" : "correct it and submit again";
    case EPD_SCOPE_EPOCH:
        return "go on with the next epoch";
    case EPD_SCOPE_GROUP:
        return "call epd_rearm and go on at epoch 0";
    case EPD_SCOPE_DEVICE:
        return "call epd_rearm when the device is back";
    case EPD_SCOPE_SESSION:
    case EPD_SCOPE_DAEMON:
        return "close the session and open a new one";
    default:
        return "";
    }
}

static void add_cause(struct text *t, const struct epd_result *r)
{
    if (r->status == EPD_ERANKLATE && r->rank >= 0) {
        add(t, ": rank %d %s", r->rank, phase_missing(r->phase));
        return;
    }
    add(t, ": %s", epd_status_describe(r->status));
    if (r->rank >= 0 && r->other_rank >= 0)
        add(t, ", ranks %d and %d", r->rank, r->other_rank);
    else if (r->rank >= 0)
        add(t, ", rank %d", r->rank);
    if (r->status == EPD_EORDER)
        add(t, ", expected epoch %llu", (unsigned long long)r->value);
    else if (r->field != EPD_FIELD_NONE)
        add(t, ", %s is %lld", field_name(r->field), (long long)r->value);
}

const char *epd_result_describe(const struct epd_result *result, char *buf, size_t len)
{
    if (!buf || len == 0)
        return buf;

    struct text t = {.buf = buf, .len = len};
    buf[0] = '\0';
    add(&t, "epoch %llu: ", (unsigned long long)result->epoch);
    if (result->status == EPD_OK) {
        add(&t, "%s complete, %u rows", kind_name(result->kind), result->rows);
        return buf;
    }
    add(&t, "%s failed", kind_name(result->kind));
    add_cause(&t, result);
    if (result->phase != EPD_PHASE_NONE)
        add(&t, " (phase %s)", phase_name(result->phase));
    add(&t, "; %s", remedy(result));
    return buf;
}
