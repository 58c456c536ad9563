/* CreateGroup, OpenGroup, DestroyGroup, ResetGroup, PlanGroup, ListGroups. */
#include "daemon/core/group.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/util.h"
#include "daemon/core/plan.h"
#include "daemon/core/status.h"
#include "daemon/rpc/control_wire.h"

/* One group as a message, with everything it points to. */
struct group_message {
    struct epd_status_group view;
    Epd__V1__Group group;
    Epd__V1__Shape shape;
    Epd__V1__Seat seat[EPD_MAX_RANKS];
    Epd__V1__Seat *seats[EPD_MAX_RANKS];
};

static char *read_only(const char *text)
{
    return (char *)(uintptr_t)text; /* only read while packing */
}

static void fill_seat(const struct epd_status_seat *from, Epd__V1__Seat *to)
{
    epd__v1__seat__init(to);
    to->rank = from->rank;
    to->device = from->device;
    to->state = read_only(from->state);
    to->session = from->session;
    to->pid = (uint32_t)from->pid;
    to->ops = from->ops;
    to->wait_us = from->wait_us;
    to->work_us = from->work_us;
}

/* From m->view. */
static void fill_group(struct group_message *m)
{
    const struct epd_status_group *v = &m->view;
    Epd__V1__Group *g = &m->group;
    epd__v1__group__init(g);
    epd_wire_shape_out(&v->shape, &m->shape);
    for (uint32_t r = 0; r < v->shape.ranks; r++) {
        fill_seat(&v->seat[r], &m->seat[r]);
        m->seats[r] = &m->seat[r];
    }
    g->id = v->id;
    g->name = read_only(v->name);
    g->shape = &m->shape;
    g->timeout_ms = v->timeout_ms;
    g->first_timeout_ms = v->first_timeout_ms;
    g->ephemeral = v->ephemeral;
    g->allow_absent = v->allow_absent;
    g->has_key = v->has_key;
    g->uid = (uint32_t)v->uid;
    g->generation = v->generation;
    g->state = read_only(v->state);
    g->cause = read_only(v->cause);
    g->n_seats = v->shape.ranks;
    g->seats = m->seats;
    g->failed_epochs = v->failed_epochs;
}

static void reply_group(struct epd_rpc_call *call, const struct epd_group *group)
{
    struct group_message m;
    Epd__V1__GroupReply reply = EPD__V1__GROUP_REPLY__INIT;
    epd_status_of_group(group, &m.view);
    fill_group(&m);
    reply.group = &m.group;
    epd_wire_reply(call, &reply.base);
}

static void on_group(void *arg, struct epd_group *group, const struct epd_error *err)
{
    struct epd_pending *p = arg;
    if (err != NULL) {
        epd_pending_fail(p, err);
        return;
    }
    reply_group(p->call, group);
    epd_pending_destroy(p);
}

void epd_control_create_group(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__CreateGroupRequest *r =
        epd_wire_parse(call, &epd__v1__create_group_request__descriptor, msg, len);
    if (r == NULL)
        return;
    struct epd_session *session = epd_wire_session(control, call, r->session);
    if (session != NULL) {
        struct epd_group_request request = {
            .name = r->name,
            .timeout_ms = r->timeout_ms,
            .first_timeout_ms = r->first_timeout_ms,
            .ephemeral = r->ephemeral,
            .allow_absent = r->allow_absent,
            .placement = r->placement,
            .n_placement = r->n_placement,
            .key = r->key.data,
            .key_len = r->key.len,
        };
        epd_wire_shape_in(r->shape, &request.shape);
        epd_group_create(session, &request, on_group, epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

struct opening {
    struct epd_pending *pending;
    char name[64];
};

static void on_refreshed(void *arg)
{
    struct opening *o = arg;
    struct epd_group *group;
    struct epd_error err;
    if (epd_group_open(o->pending->control->options.core, o->name, &group, &err) == EPD_OK)
        on_group(o->pending, group, NULL);
    else
        epd_pending_fail(o->pending, &err);
    free(o);
}

void epd_control_open_group(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__OpenGroupRequest *r =
        epd_wire_parse(call, &epd__v1__open_group_request__descriptor, msg, len);
    struct epd_error err;
    if (r == NULL)
        return;
    if (!epd_group_name_valid(r->name)) {
        (void)epd_fail(&err, EPD_EINVAL, "name must be 1..63 of [A-Za-z0-9._-]");
        epd_wire_fail(call, &err);
    } else if (r->session == NULL || epd_wire_session(control, call, r->session) != NULL) {
        struct opening *o = calloc(1, sizeof(*o));
        epd_assert(o != NULL);
        o->pending = epd_pending_create(control, call);
        (void)snprintf(o->name, sizeof(o->name), "%s", r->name);
        epd_status_refresh(control->options.core, on_refreshed, o);
    }
    epd_wire_free(r);
}

/* Administrative calls need no session, but one that is shown must be right. */
static bool session_fits(struct epd_control *control, struct epd_rpc_call *call,
                         const Epd__V1__Session *session)
{
    return session == NULL || session->id == 0 || epd_wire_session(control, call, session) != NULL;
}

void epd_control_destroy_group(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__DestroyGroupRequest *r =
        epd_wire_parse(call, &epd__v1__destroy_group_request__descriptor, msg, len);
    if (r == NULL)
        return;
    if (session_fits(control, call, r->session)) {
        const struct epd_group_admin request = {
            .group = r->group, .caller = epd_rpc_call_peer(call), .force = r->force};
        epd_group_destroy(control->options.core, &request, epd_pending_done,
                          epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

void epd_control_reset_group(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__ResetGroupRequest *r =
        epd_wire_parse(call, &epd__v1__reset_group_request__descriptor, msg, len);
    if (r == NULL)
        return;
    if (session_fits(control, call, r->session)) {
        const struct epd_group_admin request = {.group = r->group,
                                                .caller = epd_rpc_call_peer(call)};
        epd_group_reset(control->options.core, &request, on_group,
                        epd_pending_create(control, call));
    }
    epd_wire_free(r);
}

static enum epd_status plan(struct epd_control *control, const Epd__V1__PlanGroupRequest *r,
                            struct epd_plan *out, struct epd_error *err)
{
    struct epd_shape shape;
    uint8_t device[EPD_MAX_RANKS];
    struct epd_status_summary summary;
    epd_wire_shape_in(r->shape, &shape);
    enum epd_status status = epd_plan_group(&shape, out, err);
    if (status != EPD_OK)
        return status;
    epd_status_summary(control->options.core, &summary);
    const struct epd_placement_request place = {
        .explicit_devices = r->placement, .n = r->n_placement, .n_devices = summary.devices};
    return epd_group_place(&shape, &place, device, err);
}

void epd_control_plan_group(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    Epd__V1__PlanGroupReply reply = EPD__V1__PLAN_GROUP_REPLY__INIT;
    Epd__V1__PlanTerm term[EPD_PLAN_TERMS], *terms[EPD_PLAN_TERMS];
    struct epd_plan p;
    struct epd_error err;
    Epd__V1__PlanGroupRequest *r =
        epd_wire_parse(call, &epd__v1__plan_group_request__descriptor, msg, len);
    if (r == NULL)
        return;
    if (plan(ctx, r, &p, &err) != EPD_OK) {
        epd_wire_fail(call, &err);
    } else {
        for (unsigned i = 0; i < EPD_PLAN_TERMS; i++) {
            epd__v1__plan_term__init(&term[i]);
            term[i].name = read_only(p.term[i].name);
            term[i].formula = read_only(p.term[i].formula);
            term[i].bytes = p.term[i].bytes;
            terms[i] = &term[i];
        }
        reply.n_terms = EPD_PLAN_TERMS;
        reply.terms = terms;
        reply.seat_bytes = p.seat_bytes;
        reply.group_bytes = p.group_bytes;
        reply.engine_bytes = p.engine_bytes;
        epd_wire_reply(call, &reply.base);
    }
    epd_wire_free(r);
}

/* ---- list ---- */

static void on_list_ready(void *arg)
{
    struct epd_pending *p = arg;
    const struct epd_core *core = p->control->options.core;
    Epd__V1__ListGroupsReply reply = EPD__V1__LIST_GROUPS_REPLY__INIT;
    struct epd_status_summary summary;
    struct epd_error err;
    uint32_t cursor = 0;
    epd_status_summary(core, &summary);
    struct group_message *m = calloc(summary.groups + 1u, sizeof(*m));
    Epd__V1__Group **groups = calloc(summary.groups + 1u, sizeof(*groups));
    if (m == NULL || groups == NULL) {
        (void)epd_fail(&err, EPD_ENOMEM, "no memory for the list");
        epd_pending_fail(p, &err);
    } else {
        while (reply.n_groups < summary.groups &&
               epd_status_group(core, &cursor, &m[reply.n_groups].view)) {
            fill_group(&m[reply.n_groups]);
            groups[reply.n_groups] = &m[reply.n_groups].group;
            reply.n_groups++;
        }
        reply.groups = groups;
        epd_pending_reply(p, &reply.base);
    }
    free(groups);
    free(m);
}

void epd_control_list_groups(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    (void)msg;
    (void)len;
    epd_status_refresh(control->options.core, on_list_ready, epd_pending_create(control, call));
}
