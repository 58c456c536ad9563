#include "client/epdctl/ctl.h"

#include <stdio.h>
#include <string.h>

#include "client/epdctl/output.h"
#include "client/epdctl/show.h"
#include "proto/control.pb-c.h"

static void print_json(const struct ctl *ctl, const Epd__V1__StatusReply *r)
{
    json_t *devices = json_array(), *problems = json_array();
    for (size_t i = 0; i < r->n_devices; i++)
        (void)json_array_append_new(devices, show_device_json(r->devices[i]));
    for (size_t i = 0; i < r->n_problems; i++)
        (void)json_array_append_new(problems, json_string(r->problems[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:I, s:i, s:i}", "state", r->state,
                  "version", r->version, "node", r->node, "backend", r->backend, "isolation",
                  r->isolation, "pid", (int)r->pid, "protocol", (int)r->protocol, "abi",
                  (int)r->abi, "socket", r->socket, "uptime_ms", (json_int_t)r->uptime_ms,
                  "sessions", (int)r->sessions, "groups", (int)r->groups);
    (void)json_object_set_new(root, "devices", devices);
    (void)json_object_set_new(root, "problems", problems);
    (void)json_object_set_new(root, "counters", show_counters_json(r->counters, r->n_counters));
    ctl_json(ctl, root);
}

static void print_text(const struct ctl *ctl, const Epd__V1__StatusReply *r)
{
    char up[32];
    const char *color = !ctl->color                        ? ""
                        : strcmp(r->state, "serving") == 0 ? "\033[32m"
                                                           : "\033[31m";
    (void)printf("epd %s on %s: %s%s%s, backend %s, isolation %s\n", r->version, r->node, color,
                 r->state, ctl->color ? "\033[0m" : "", r->backend, r->isolation);
    (void)printf("pid %u, up %s, socket %s, %u sessions, %u groups\n", r->pid,
                 format_duration(r->uptime_ms, up, sizeof(up)), r->socket, r->sessions, r->groups);
    for (size_t i = 0; i < r->n_problems; i++)
        (void)printf("problem: %s\n", r->problems[i]);
    (void)putchar('\n');
    struct table *t = show_device_table();
    for (size_t i = 0; i < r->n_devices; i++)
        show_device_row(t, r->devices[i]);
    table_print(t);
}

static int run(struct ctl *ctl)
{
    int code = ctl_no_args(ctl);
    if (code != CTL_OK)
        return code;
    const Epd__V1__StatusRequest request = EPD__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct epd_error err = {.status = EPD_OK};
    if (ctl_call(ctl, "GetStatus", &request.base, &epd__v1__status_reply__descriptor, &m, &err) !=
        EPD_OK)
        return ctl_report(ctl, &err);
    const Epd__V1__StatusReply *r = (const void *)m;
    if (ctl->json)
        print_json(ctl, r);
    else
        print_text(ctl, r);
    const bool serving = strcmp(r->state, "serving") == 0, degraded = r->n_problems > 0;
    const bool down = !serving && strcmp(r->state, "degraded") != 0;
    protobuf_c_message_free_unpacked(m, NULL);
    return down ? CTL_FAILED : (degraded || !serving) && ctl->strict ? CTL_DEGRADED : CTL_OK;
}

const struct ctl_verb ctl_verb_status = {
    .name = "status",
    .args = "",
    .summary = "State of the daemon, its devices and counters",
    .run = run,
};
