/* groups, sessions, devices, tables: one list call each. */
#include "client/epdctl/ctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/epdctl/output.h"
#include "client/epdctl/show.h"
#include "proto/control.pb-c.h"

static int list(struct ctl *ctl, const char *method, const ProtobufCMessageDescriptor *descriptor,
                void (*print)(const struct ctl *ctl, const ProtobufCMessage *reply))
{
    int code = ctl_no_args(ctl);
    if (code != CTL_OK)
        return code;
    const Epd__V1__ListRequest request = EPD__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct epd_error err = {.status = EPD_OK};
    if (ctl_call(ctl, method, &request.base, descriptor, &m, &err) != EPD_OK)
        return ctl_report(ctl, &err);
    print(ctl, m);
    protobuf_c_message_free_unpacked(m, NULL);
    return CTL_OK;
}

static void print_groups(const struct ctl *ctl, const ProtobufCMessage *m)
{
    const Epd__V1__ListGroupsReply *r = (const void *)m;
    if (ctl->json) {
        json_t *all = json_array();
        for (size_t i = 0; i < r->n_groups; i++)
            (void)json_array_append_new(all, show_group_json(r->groups[i]));
        ctl_json(ctl, json_pack("{s:o}", "groups", all));
        return;
    }
    static const char *const header[] = {"GROUP",  "STATE", "GEN",    "RANKS", "LEASED", "EXPERTS",
                                         "TOKENS", "TOPK",  "HIDDEN", "TYPE",  "CAUSE",  NULL};
    struct table *t = table_create(header);
    for (size_t i = 0; i < r->n_groups; i++) {
        const Epd__V1__Group *g = r->groups[i];
        const Epd__V1__Shape *s = g->shape;
        unsigned leased = 0;
        for (size_t k = 0; k < g->n_seats; k++)
            leased += g->seats[k]->session != 0;
        table_cell(t, "%s", g->name);
        table_cell(t, "%s", g->state);
        table_cell(t, "%u", g->generation);
        table_cell(t, "%u", s->ranks);
        table_cell(t, "%u", leased);
        table_cell(t, "%u", s->experts);
        table_cell(t, "%u", s->max_tokens);
        table_cell(t, "%u", s->topk);
        table_cell(t, "%u", s->hidden);
        table_cell(t, "%s/%s/%s", mode_name(s->mode), layout_name(s->layout), dtype_name(s->dtype));
        table_cell(t, "%s", g->cause);
    }
    table_print(t);
}

static void print_sessions(const struct ctl *ctl, const ProtobufCMessage *m)
{
    const Epd__V1__ListSessionsReply *r = (const void *)m;
    if (ctl->json) {
        json_t *all = json_array();
        for (size_t i = 0; i < r->n_sessions; i++)
            (void)json_array_append_new(all, show_session_json(r->sessions[i]));
        ctl_json(ctl, json_pack("{s:o}", "sessions", all));
        return;
    }
    static const char *const header[] = {"SESSION", "NAME",   "UID",     "PID",    "STATE",
                                         "AGE",     "LEASES", "BUFFERS", "MEMORY", NULL};
    struct table *t = table_create(header);
    for (size_t i = 0; i < r->n_sessions; i++) {
        const Epd__V1__SessionInfo *s = r->sessions[i];
        char age[32], size[32];
        table_cell(t, "%" PRIu64, s->id);
        table_cell(t, "%s", s->name);
        table_cell(t, "%u", s->uid);
        table_cell(t, "%u", s->pid);
        table_cell(t, "%s", s->state);
        table_cell(t, "%s", format_duration(s->age_ms, age, sizeof(age)));
        table_cell(t, "%u", s->leases);
        table_cell(t, "%u", s->buffers);
        table_cell(t, "%s", format_bytes(s->bytes, size, sizeof(size)));
    }
    table_print(t);
}

static void print_devices(const struct ctl *ctl, const ProtobufCMessage *m)
{
    const Epd__V1__ListDevicesReply *r = (const void *)m;
    if (ctl->json) {
        json_t *all = json_array();
        for (size_t i = 0; i < r->n_devices; i++)
            (void)json_array_append_new(all, show_device_json(r->devices[i]));
        ctl_json(ctl, json_pack("{s:o}", "devices", all));
        return;
    }
    struct table *t = show_device_table();
    for (size_t i = 0; i < r->n_devices; i++)
        show_device_row(t, r->devices[i]);
    table_print(t);
}

static void print_tables(const struct ctl *ctl, const ProtobufCMessage *m)
{
    const Epd__V1__ListTablesReply *r = (const void *)m;
    static const char *const header[] = {"MACHINE", "STATE", "EVENT", "NEXT", NULL};
    struct table *t = ctl->json ? NULL : table_create(header);
    json_t *all = json_array();
    for (size_t i = 0; i < r->n_tables; i++) {
        json_t *rows = json_array();
        for (size_t k = 0; k < r->tables[i]->n_rows; k++) {
            const Epd__V1__TableRow *row = r->tables[i]->rows[k];
            (void)json_array_append_new(rows, json_pack("{s:s, s:s, s:s}", "from", row->from,
                                                        "event", row->event, "to", row->to));
            table_cell(t, "%s", r->tables[i]->name);
            table_cell(t, "%s", row->from);
            table_cell(t, "%s", row->event);
            table_cell(t, "%s", row->to);
        }
        (void)json_array_append_new(
            all, json_pack("{s:s, s:o}", "name", r->tables[i]->name, "rows", rows));
    }
    if (ctl->json)
        ctl_json(ctl, json_pack("{s:o}", "tables", all));
    else
        json_decref(all);
    table_print(t);
}

static int run_groups(struct ctl *ctl)
{
    return list(ctl, "ListGroups", &epd__v1__list_groups_reply__descriptor, print_groups);
}
static int run_sessions(struct ctl *ctl)
{
    return list(ctl, "ListSessions", &epd__v1__list_sessions_reply__descriptor, print_sessions);
}
static int run_devices(struct ctl *ctl)
{
    return list(ctl, "ListDevices", &epd__v1__list_devices_reply__descriptor, print_devices);
}
static int run_tables(struct ctl *ctl)
{
    return list(ctl, "ListTables", &epd__v1__list_tables_reply__descriptor, print_tables);
}

const struct ctl_verb ctl_verb_groups = {.name = "groups",
                                         .args = "",
                                         .summary = "Expert-parallel groups and their seats",
                                         .run = run_groups};
const struct ctl_verb ctl_verb_sessions = {
    .name = "sessions", .args = "", .summary = "Attached client processes", .run = run_sessions};
const struct ctl_verb ctl_verb_devices = {
    .name = "devices", .args = "", .summary = "Devices and their engines", .run = run_devices};
const struct ctl_verb ctl_verb_tables = {.name = "tables",
                                         .args = "",
                                         .summary = "The daemon's state machines as tables",
                                         .run = run_tables};
