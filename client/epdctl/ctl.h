/* The frame of epdctl: one verb a file, each exporting one row of this table. */
#ifndef EPDCTL_CTL_H
#define EPDCTL_CTL_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

#include "client/admin.h"
#include "proto/errors.h"

/* Exit codes: the command's API (README.md). */
enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1,
    CTL_USAGE = 2,
    CTL_UNREACHABLE = 3,
    CTL_DEGRADED = 4,
    CTL_PERMISSION = 5,
    CTL_VERSION = 6,
    CTL_TIMEOUT = 7,
};

struct ctl {
    const char *socket; /* NULL: the usual order */
    int64_t timeout_ns; /* of a call */
    bool json, strict, color;
    const char *verb;
    int argc; /* the verb's own arguments; argv[0] is the verb */
    char **argv;
    struct epd_admin *admin; /* opened by ctl_call */
};

struct ctl_verb {
    const char *name;
    const char *args; /* "TRACE [options]" */
    const char *summary;
    int (*run)(struct ctl *ctl);
    const char *help; /* the verb's options, NULL: none; */
    bool hidden;
};

extern const struct ctl_verb ctl_verb_version, ctl_verb_status, ctl_verb_health, ctl_verb_groups,
    ctl_verb_group, ctl_verb_sessions, ctl_verb_devices, ctl_verb_events, ctl_verb_tables,
    ctl_verb_replay, ctl_verb_replay_worker, ctl_verb_bench;

/* Exit code of a status. */
int ctl_exit_of(enum epd_status status);
/* Report a failure: message on stderr, or with --json {"schema", "error"} on stdout. Returns the
 * exit code. */
int ctl_report(const struct ctl *ctl, const struct epd_error *err);
/* Wrong arguments: the message and the verb's usage on stderr. Returns CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(const struct ctl *ctl, const char *fmt, ...);
/* No arguments are taken: CTL_OK or CTL_USAGE. */
int ctl_no_args(const struct ctl *ctl);

/* One control call: packs request, unpacks the reply by `descriptor`. *reply_out: free with
 * protobuf_c_message_free_unpacked(reply, NULL). */
enum epd_status ctl_call(struct ctl *ctl, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **reply_out,
                         struct epd_error *err);

/* Print root (taken over) with "schema": "epd.<verb>.v1" first. */
void ctl_json(const struct ctl *ctl, json_t *root);

#endif
