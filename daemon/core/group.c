#define EPD_LOG_COMPONENT "group"
#include "daemon/core/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/core/change.h"
#include "daemon/core/chunk.h"
#include "daemon/core/core_internal.h"
#include "daemon/core/join.h"
#include "daemon/core/lease.h"
#include "daemon/core/must.h"
#include "proto/exchange.h"

#define TIMEOUT_MS 5000u
#define FIRST_TIMEOUT_MS 60000u
#define TIMEOUT_MAX_MS 3600000u

/* ---- states ---- */

static const char *const g_states[] = {"creating", "armed",  "rearm",    "revoking", "changing",
                                       "waiting",  "arming", "dropping", "gone"};
static const char *const g_events[] = {"created",     "change",    "revoked",   "all_acked",
                                       "some_acked",  "device_up", "all_armed", "armed",
                                       "all_rearmed", "drop",      "dropped"};
static const struct epd_fsm_row g_rows[] = {
    {EPD_GROUP_CREATING, EPD_GROUP_EV_CREATED, EPD_GROUP_ARMED},
    {EPD_GROUP_CREATING, EPD_GROUP_EV_DROP, EPD_GROUP_DROPPING},
    {EPD_GROUP_ARMED, EPD_GROUP_EV_CHANGE, EPD_GROUP_REVOKING},
    {EPD_GROUP_ARMED, EPD_GROUP_EV_DROP, EPD_GROUP_DROPPING},
    {EPD_GROUP_REARM, EPD_GROUP_EV_CHANGE, EPD_GROUP_REVOKING},
    {EPD_GROUP_REARM, EPD_GROUP_EV_REARMED, EPD_GROUP_ARMED},
    {EPD_GROUP_REVOKING, EPD_GROUP_EV_REVOKED, EPD_GROUP_CHANGING},
    {EPD_GROUP_CHANGING, EPD_GROUP_EV_ALL_ACKED, EPD_GROUP_ARMING},
    {EPD_GROUP_CHANGING, EPD_GROUP_EV_SOME_ACKED, EPD_GROUP_WAITING},
    {EPD_GROUP_CHANGING, EPD_GROUP_EV_DEVICE_UP, EPD_GROUP_CHANGING},
    {EPD_GROUP_WAITING, EPD_GROUP_EV_DEVICE_UP, EPD_GROUP_CHANGING},
    {EPD_GROUP_WAITING, EPD_GROUP_EV_DROP, EPD_GROUP_DROPPING},
    {EPD_GROUP_ARMING, EPD_GROUP_EV_ARMED, EPD_GROUP_ARMED},
    {EPD_GROUP_ARMING, EPD_GROUP_EV_ARMED_SOME, EPD_GROUP_REARM},
    {EPD_GROUP_DROPPING, EPD_GROUP_EV_DROPPED, EPD_GROUP_GONE},
};
static uint64_t g_taken[EPD_ARRAY_LEN(g_rows)];
const struct epd_fsm epd_group_fsm = {"group", g_states, g_events, g_rows, EPD_ARRAY_LEN(g_rows),
                                      g_taken};

void epd_group_set_state(struct epd_group *g, enum epd_group_event event)
{
    g->state = (enum epd_group_state)epd_fsm_step(&epd_group_fsm, g->state, event, g->name);
}

bool epd_group_stable(const struct epd_group *g)
{
    return g->state == EPD_GROUP_ARMED || g->state == EPD_GROUP_REARM;
}

/* ---- looks ---- */

bool epd_group_name_valid(const char *name)
{
    static const char *const allowed =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(name);
    return n >= 1 && n < EPD_NAME_BYTES && strspn(name, allowed) == n;
}

static struct epd_group *find_name(struct epd_core *core, const char *name)
{
    uint32_t cursor = 0;
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        if (strcmp(g->name, name) == 0)
            return g;
    return NULL;
}

enum epd_status epd_group_open(struct epd_core *core, const char *name, struct epd_group **out,
                               struct epd_error *err)
{
    struct epd_group *g = find_name(core, name);
    if (g == NULL || g->state == EPD_GROUP_CREATING)
        return epd_fail(err, EPD_ENOENT, "no group %.64s", name);
    *out = g;
    return EPD_OK;
}

enum epd_status epd_group_get(struct epd_core *core, uint64_t id, struct epd_group **out,
                              struct epd_error *err)
{
    void *found;
    const struct epd_handle h = epd_handle_unpack(id);
    enum epd_status status = epd_handles_get(&core->groups, h, &found, err);
    /* Another generation of a slot in use: some other group's id, older or made up. */
    if (status == EPD_ENOENT && h.generation != 0 && h.index < core->groups.n_slots)
        status = epd_fail(err, EPD_ESTALE, "id %u.%u is stale", h.index, h.generation);
    if (status != EPD_OK) {
        (void)epd_fail_prefix(err, "group");
        return status;
    }
    *out = found;
    return EPD_OK;
}

bool epd_group_has_leases(const struct epd_group *g)
{
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->seat[r].lease != NULL || g->seat[r].joiner != NULL)
            return true;
    return false;
}

uint64_t epd_group_present(const struct epd_group *g)
{
    uint64_t present = 0;
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        const struct epd_seat *seat = &g->seat[r];
        const bool stays = seat->lease != NULL && seat->lease->state != EPD_LEASE_RECLAIMING;
        const bool joins = seat->joiner != NULL && seat->joiner->chunk != NULL;
        if (!g->allow_absent || stays || joins)
            present |= 1ull << r;
    }
    return present;
}

enum epd_status epd_group_place(const struct epd_shape *shape,
                                const struct epd_placement_request *request,
                                uint8_t device_out[EPD_MAX_RANKS], struct epd_error *err)
{
    const uint32_t ranks = shape->ranks;
    if (request->n != 0 && request->n != ranks)
        return epd_fail(err, EPD_EINVAL, "placement has %zu devices, the group %u ranks",
                        request->n, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t d = request->roundrobin ? r % request->n_devices
                                         : (uint32_t)((uint64_t)r * request->n_devices / ranks);
        if (request->n != 0)
            d = request->explicit_devices[r];
        if (d >= request->n_devices)
            return epd_fail(err, EPD_EINVAL, "placement[%u] is %u, the devices are 0..%u", r, d,
                            request->n_devices - 1);
        device_out[r] = (uint8_t)d;
    }
    return EPD_OK;
}

/* ---- the end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    epd_group_put(handle->data);
}

void epd_group_put(struct epd_group *g)
{
    epd_assert(g->refs > 0);
    if (--g->refs == 0)
        free(g);
}

static void on_dropped(void *arg, const struct epd_error *err)
{
    struct epd_group *g = arg;
    struct epd_core *core = g->core;
    /* ENOENT: a creation that failed half way. */
    if (err != NULL && err->status != EPD_ENOENT)
        log_warn("group %s: an engine kept it: %s", g->name, err->message);
    for (unsigned d = 0; d < EPD_MAX_DEVICES; d++)
        epd_chunk_drop(core, g->exchange[d]);
    log_debug("group %s is gone", g->name);
    epd_events_add(core->events, "group", g->name, "destroyed");
    epd_group_set_state(g, EPD_GROUP_EV_DROPPED);
    epd_handles_remove(&core->groups, g->handle);
    epd_waiters_run(&g->waiters);
    epd_waiters_run(&g->destroyed);
    uv_close((uv_handle_t *)&g->revoke_timer, on_timer_closed);
}

void epd_group_drop(struct epd_group *g)
{
    epd_assert(!epd_group_has_leases(g));
    epd_group_set_state(g, EPD_GROUP_EV_DROP);
    struct epd_join *join = epd_join_create(true, on_dropped, g);
    EPD_FOR_DEVICES(d, g->devices)
    {
        struct epd_msg_epoch msg = {.h = {.type = EPD_MSG_GROUP_DROP, .bytes = sizeof(msg)},
                                    .group = g->id,
                                    .generation = g->generation};
        if (epd_known_to(g->core->device[d], g->set_in[d]))
            epd_join_request(join, g->core->device[d], &msg.h, -1);
    }
    epd_join_seal(join);
}

/* ---- creation ---- */

struct creating {
    struct epd_group *group;
    unsigned left; /* exchange chunks */
    struct epd_error err;
    epd_group_fn fn;
    void *arg;
};

static struct epd_msg_group set_message(const struct epd_group *g, bool armed)
{
    struct epd_msg_group msg = {
        .h = {.type = EPD_MSG_GROUP_SET, .bytes = sizeof(msg)},
        .group = g->id,
        .generation = g->generation,
        .armed = armed,
        .shape = g->shape,
        .timeout_ms = g->timeout_ms,
        .first_timeout_ms = g->first_timeout_ms,
        .present = epd_group_present(g),
    };
    memcpy(msg.device, g->device, sizeof(msg.device));
    for (unsigned d = 0; d < EPD_MAX_DEVICES; d++)
        msg.exchange[d] = g->exchange[d] != NULL ? g->exchange[d]->id : 0;
    return msg;
}

static void created(struct creating *c, const struct epd_error *err)
{
    struct epd_group *g = c->group;
    struct epd_core *core = g->core;
    if (err != NULL) {
        c->fn(c->arg, NULL, err);
        free(c);
        epd_group_drop(g);
        return;
    }
    core->counters.groups++;
    epd_group_set_state(g, EPD_GROUP_EV_CREATED);
    log_debug("group %s: %u ranks, %u experts, uid %u", g->name, g->shape.ranks, g->shape.experts,
              (unsigned)g->uid);
    epd_events_add(core->events, "group", g->name, "created: %u ranks, %u experts", g->shape.ranks,
                   g->shape.experts);
    c->fn(c->arg, g, NULL);
    free(c);
    g->refs++;
    epd_change_end_if_due(g);
    epd_waiters_run(&g->waiters);
    epd_group_put(g);
}

static void on_set(void *arg, const struct epd_error *err)
{
    struct creating *c = arg;
    struct epd_group *g = c->group;
    struct epd_error lost;
    EPD_FOR_DEVICES(d, g->devices)
    if (err == NULL && !epd_known_to(g->core->device[d], g->set_in[d])) {
        (void)epd_fail(&lost, EPD_EDEVICE, "device %u restarted meanwhile; try again", d);
        err = &lost;
    }
    created(c, err);
}

static void tell_engines(struct creating *c)
{
    struct epd_group *g = c->group;
    struct epd_join *join = epd_join_create(false, on_set, c);
    struct epd_msg_group msg = set_message(g, true);
    EPD_FOR_DEVICES(d, g->devices)
    {
        g->set_in[d] = epd_device_incarnation(g->core->device[d]);
        epd_join_request(join, g->core->device[d], &msg.h, -1);
    }
    epd_join_seal(join);
}

static void on_exchange(void *arg, struct epd_chunk *chunk, const struct epd_error *err)
{
    struct creating *c = arg;
    if (err != NULL && c->err.status == EPD_OK)
        c->err = *err;
    if (err == NULL)
        c->group->exchange[chunk->device] = chunk;
    if (--c->left > 0)
        return;
    if (c->err.status == EPD_OK)
        tell_engines(c);
    else
        created(c, &c->err);
}

static enum epd_status check_request(struct epd_session *session, const struct epd_group_request *r,
                                     struct epd_error *err)
{
    struct epd_core *core = session->core;
    uint32_t cursor = 0;
    uint64_t mine = 0;
    const char *problem = epd_shape_problem(&r->shape);
    if (!epd_group_name_valid(r->name))
        return epd_fail(err, EPD_EINVAL, "name must be 1..63 of [A-Za-z0-9._-]");
    if (problem != NULL)
        return epd_fail(err, EPD_EINVAL, "shape: %s", problem);
    if (r->timeout_ms > TIMEOUT_MAX_MS || r->first_timeout_ms > TIMEOUT_MAX_MS)
        return epd_fail(err, EPD_EINVAL, "timeout_ms %u, first_timeout_ms %u: at most %u",
                        r->timeout_ms, r->first_timeout_ms, TIMEOUT_MAX_MS);
    if (r->key_len != 0 && r->key_len != EPD_KEY_BYTES)
        return epd_fail(err, EPD_EINVAL, "key has %zu bytes, must have none or 16", r->key_len);
    if (find_name(core, r->name) != NULL)
        return epd_fail(err, EPD_EEXIST, "group %s exists", r->name);
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;)
        mine += g->uid == session->peer.uid;
    if (mine < core->config->max_groups_per_uid)
        return EPD_OK;
    core->counters.limited++;
    return epd_fail(err, EPD_ELIMIT, "user %u has %llu groups, max_groups_per_uid is %llu",
                    (unsigned)session->peer.uid, (unsigned long long)mine,
                    (unsigned long long)core->config->max_groups_per_uid);
}

static enum epd_status group_new(struct epd_session *session, const struct epd_group_request *r,
                                 struct epd_group **out, struct epd_error *err)
{
    struct epd_core *core = session->core;
    const struct epd_placement_request place = {
        .explicit_devices = r->placement,
        .n = r->n_placement,
        .n_devices = core->n_devices,
        .roundrobin = strcmp(core->config->placement, "roundrobin") == 0,
    };
    struct epd_group *g = epd_must_calloc(sizeof(*g));
    enum epd_status status = epd_group_place(&r->shape, &place, g->device, err);
    if (status == EPD_OK)
        status = epd_handles_add(&core->groups, g, &g->handle, err);
    if (status != EPD_OK) {
        free(g);
        return status;
    }
    g->core = core;
    g->id = epd_handle_pack(g->handle);
    (void)snprintf(g->name, sizeof(g->name), "%s", r->name);
    g->shape = r->shape;
    g->timeout_ms = r->timeout_ms != 0 ? r->timeout_ms : TIMEOUT_MS;
    g->first_timeout_ms = r->first_timeout_ms != 0 ? r->first_timeout_ms : FIRST_TIMEOUT_MS;
    g->ephemeral = r->ephemeral;
    g->allow_absent = r->allow_absent;
    g->has_key = r->key_len != 0;
    if (g->has_key)
        memcpy(g->key, r->key, sizeof(g->key));
    g->uid = session->peer.uid;
    g->creator = session->id;
    g->generation = 1;
    g->cause = (struct epd_cause){.status = EPD_OK, .rank = -1, .other_rank = -1};
    for (uint32_t rank = 0; rank < g->shape.ranks; rank++)
        g->devices |= 1u << g->device[rank];
    (void)uv_timer_init(core->loop, &g->revoke_timer); /* cannot fail */
    g->revoke_timer.data = g;
    g->refs = 1;
    *out = g;
    return EPD_OK;
}

void epd_group_create(struct epd_session *session, const struct epd_group_request *request,
                      epd_group_fn fn, void *arg)
{
    struct epd_error err;
    struct epd_group *g;
    if (check_request(session, request, &err) != EPD_OK ||
        group_new(session, request, &g, &err) != EPD_OK) {
        fn(arg, NULL, &err);
        return;
    }
    struct creating *c = epd_must_calloc(sizeof(*c));
    *c = (struct creating){.group = g, .fn = fn, .arg = arg};
    c->left = (unsigned)__builtin_popcount(g->devices);
    const uint32_t devices = g->devices; /* the last answer may free the group */
    struct epd_core *core = session->core;
    const uint64_t bytes = epd_exchange_bytes(&g->shape);
    EPD_FOR_DEVICES(d, devices)
    {
        const struct epd_chunk_spec spec = {
            .kind = EPD_CHUNK_EXCHANGE, .device = d, .bytes = bytes, .group = g};
        epd_chunk_create(core, &spec, on_exchange, c);
    }
}

void epd_group_creator_gone(struct epd_core *core, uint64_t session)
{
    uint32_t cursor = 0;
    for (struct epd_group *g; (g = epd_handles_next(&core->groups, &cursor)) != NULL;) {
        if (!g->ephemeral || g->leased_once || g->creator != session)
            continue;
        g->destroy = true;
        epd_change_end_if_due(g);
    }
}

/* ---- after a restart ---- */

void epd_group_replay(struct epd_group *g, struct epd_device *device, struct epd_join *join)
{
    const unsigned d = epd_device_index(device);
    if ((g->devices >> d & 1u) == 0 || g->state == EPD_GROUP_CREATING ||
        g->state == EPD_GROUP_DROPPING)
        return;
    struct epd_msg_group msg = set_message(g, false);
    g->set_in[d] = epd_device_incarnation(device);
    epd_join_request(join, device, &msg.h, -1);
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        if (g->device[r] == d && g->seat[r].lease != NULL)
            epd_lease_replay(g->seat[r].lease, join);
}

/* ---- by request ---- */

static enum epd_status find_for(struct epd_core *core, const struct epd_group_admin *request,
                                struct epd_group **out, struct epd_error *err)
{
    enum epd_status status = epd_group_get(core, request->group, out, err);
    if (status != EPD_OK)
        return status;
    if (request->caller->uid != (*out)->uid && !epd_core_is_admin(core, request->caller)) {
        core->counters.refused++;
        return epd_fail(err, EPD_EPERM,
                        "group %s belongs to user %u; its user or an administrator "
                        "(group %s) may do this",
                        (*out)->name, (unsigned)(*out)->uid, core->config->admin_group);
    }
    if ((*out)->state == EPD_GROUP_CREATING)
        return epd_fail(err, EPD_EBUSY, "group %s is being created", (*out)->name);
    return EPD_OK;
}

struct ending {
    epd_done_fn fn;
    void *arg;
};

static void on_ended(void *arg)
{
    struct ending *e = arg;
    e->fn(e->arg, NULL);
    free(e);
}

static unsigned count_leases(const struct epd_group *g)
{
    unsigned n = 0;
    for (uint32_t r = 0; r < g->shape.ranks; r++)
        n += g->seat[r].joiner != NULL ||
             (g->seat[r].lease != NULL && g->seat[r].lease->state != EPD_LEASE_RECLAIMING);
    return n;
}

void epd_group_destroy(struct epd_core *core, const struct epd_group_admin *request, epd_done_fn fn,
                       void *arg)
{
    struct epd_error err;
    struct epd_group *g;
    enum epd_status status = find_for(core, request, &g, &err);
    const unsigned leased = status == EPD_OK ? count_leases(g) : 0;
    if (status == EPD_OK && leased != 0 && !request->force)
        status =
            epd_fail(&err, EPD_EBUSY, "group %s has %u leased seats; release them or use force",
                     g->name, leased);
    if (status != EPD_OK) {
        fn(arg, &err);
        return;
    }
    struct ending *e = epd_must_calloc(sizeof(*e));
    *e = (struct ending){.fn = fn, .arg = arg};
    epd_waiters_add(&g->destroyed, on_ended, e);
    g->destroy = true;
    g->refs++; /* the last lease to leave may end the group */
    for (uint32_t r = 0; r < g->shape.ranks; r++) {
        if (g->seat[r].joiner != NULL)
            epd_lease_leave(g->seat[r].joiner, EPD_ERESET, "group destroyed");
        if (g->seat[r].lease != NULL)
            epd_lease_leave(g->seat[r].lease, EPD_ERESET, "group destroyed");
    }
    epd_change_end_if_due(g);
    epd_group_put(g);
}

void epd_group_reset(struct epd_core *core, const struct epd_group_admin *request, epd_group_fn fn,
                     void *arg)
{
    struct epd_error err;
    struct epd_group *g;
    if (find_for(core, request, &g, &err) != EPD_OK) {
        fn(arg, NULL, &err);
        return;
    }
    const struct epd_cause cause = {.status = EPD_ERESET, .rank = -1, .other_rank = -1};
    epd_change_begin(g, &cause, "reset by request");
    epd_change_wait_stable(g, NULL, fn, arg);
}
