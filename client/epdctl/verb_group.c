#include "client/epdctl/ctl.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/epdctl/options.h"
#include "client/epdctl/output.h"
#include "proto/control.pb-c.h"

static void print(const struct ctl *ctl, const Epd__V1__PlanGroupReply *r)
{
    char size[32];
    if (ctl->json) {
        json_t *terms = json_array();
        for (size_t i = 0; i < r->n_terms; i++)
            (void)json_array_append_new(
                terms, json_pack("{s:s, s:s, s:I}", "name", r->terms[i]->name, "formula",
                                 r->terms[i]->formula, "bytes", (json_int_t)r->terms[i]->bytes));
        ctl_json(ctl,
                 json_pack("{s:o, s:I, s:I, s:I}", "terms", terms, "seat_bytes",
                           (json_int_t)r->seat_bytes, "group_bytes", (json_int_t)r->group_bytes,
                           "engine_bytes", (json_int_t)r->engine_bytes));
        return;
    }
    static const char *const header[] = {"TERM", "BYTES", "", "FORMULA", NULL};
    struct table *t = table_create(header);
    for (size_t i = 0; i < r->n_terms; i++) {
        table_cell(t, "%s", r->terms[i]->name);
        table_cell(t, "%" PRIu64, r->terms[i]->bytes);
        table_cell(t, "%s", format_bytes(r->terms[i]->bytes, size, sizeof(size)));
        table_cell(t, "%s", r->terms[i]->formula);
    }
    table_print(t);
    (void)printf("\na seat %s", format_bytes(r->seat_bytes, size, sizeof(size)));
    (void)printf(", all seats %s", format_bytes(r->group_bytes, size, sizeof(size)));
    (void)printf(", engine-private %s a device\n",
                 format_bytes(r->engine_bytes, size, sizeof(size)));
}

static int run(struct ctl *ctl)
{
    struct shape_options o = SHAPE_OPTIONS_INIT;
    if (ctl->argc < 2 || strcmp(ctl->argv[1], "plan") != 0)
        return ctl_usage(ctl, "the only subcommand is \"plan\"");
    const char *problem = shape_options_parse(&o, ctl->argc - 1, ctl->argv + 1);
    if (problem != NULL)
        return ctl_usage(ctl, "%s", problem);
    Epd__V1__Shape shape = EPD__V1__SHAPE__INIT;
    shape.ranks = o.ranks;
    shape.experts = o.experts;
    shape.max_tokens = o.batch;
    shape.topk = o.topk;
    shape.hidden = o.hidden;
    shape.dtype = o.dtype;
    shape.mode = o.mode;
    shape.layout = o.layout;
    Epd__V1__PlanGroupRequest request = EPD__V1__PLAN_GROUP_REQUEST__INIT;
    request.shape = &shape;
    ProtobufCMessage *m = NULL;
    struct epd_error err = {.status = EPD_OK};
    if (ctl_call(ctl, "PlanGroup", &request.base, &epd__v1__plan_group_reply__descriptor, &m,
                 &err) != EPD_OK)
        return ctl_report(ctl, &err);
    print(ctl, (const void *)m);
    protobuf_c_message_free_unpacked(m, NULL);
    return CTL_OK;
}

const struct ctl_verb ctl_verb_group = {
    .name = "group",
    .args = "plan [options]",
    .summary = "Bytes that a group would take, term by term",
    .run = run,
    .help = SHAPE_OPTIONS_HELP,
};
