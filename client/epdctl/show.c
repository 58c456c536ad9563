#include "client/epdctl/show.h"

#include "client/epdctl/output.h"

#define INT(x) ((json_int_t)(x))

json_t *show_device_json(const Epd__V1__Device *d)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:s}", "index", (int)d->index, "backend",
        d->backend, "state", d->state, "mode", d->mode, "incarnation", INT(d->incarnation), "pid",
        (int)d->pid, "workers", (int)d->workers, "restarts", (int)d->restarts, "cause", d->cause);
    (void)json_object_update_new(
        root, json_pack("{s:I, s:I, s:I, s:I, s:I, s:i}", "chunks", INT(d->chunks), "chunk_bytes",
                        INT(d->chunk_bytes), "ops", INT(d->ops), "tasks", INT(d->tasks), "wakeups",
                        INT(d->wakeups), "seats", (int)d->seats));
    return root;
}

static json_t *shape_json(const Epd__V1__Shape *s)
{
    if (s == NULL)
        return json_object();
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s}", "ranks", (int)s->ranks, "experts",
                     (int)s->experts, "max_tokens", (int)s->max_tokens, "topk", (int)s->topk,
                     "hidden", (int)s->hidden, "dtype", dtype_name(s->dtype), "mode",
                     mode_name(s->mode), "layout", layout_name(s->layout));
}

json_t *show_group_json(const Epd__V1__Group *g)
{
    json_t *seats = json_array();
    for (size_t i = 0; i < g->n_seats; i++) {
        const Epd__V1__Seat *s = g->seats[i];
        (void)json_array_append_new(
            seats, json_pack("{s:i, s:i, s:s, s:I, s:i, s:I, s:I, s:I}", "rank", (int)s->rank,
                             "device", (int)s->device, "state", s->state, "session",
                             INT(s->session), "pid", (int)s->pid, "ops", INT(s->ops), "wait_us",
                             INT(s->wait_us), "work_us", INT(s->work_us)));
    }
    json_t *root =
        json_pack("{s:I, s:s, s:s, s:i, s:s, s:i, s:o, s:o}", "id", INT(g->id), "name", g->name,
                  "state", g->state, "generation", (int)g->generation, "cause", g->cause, "uid",
                  (int)g->uid, "shape", shape_json(g->shape), "seats", seats);
    (void)json_object_update_new(
        root, json_pack("{s:i, s:i, s:b, s:b, s:b, s:I}", "timeout_ms", (int)g->timeout_ms,
                        "first_timeout_ms", (int)g->first_timeout_ms, "ephemeral",
                        (int)g->ephemeral, "allow_absent", (int)g->allow_absent, "has_key",
                        (int)g->has_key, "failed_epochs", INT(g->failed_epochs)));
    return root;
}

json_t *show_session_json(const Epd__V1__SessionInfo *s)
{
    return json_pack("{s:I, s:s, s:i, s:i, s:s, s:I, s:i, s:i, s:I, s:s}", "id", INT(s->id), "name",
                     s->name, "uid", (int)s->uid, "pid", (int)s->pid, "state", s->state, "age_ms",
                     INT(s->age_ms), "leases", (int)s->leases, "buffers", (int)s->buffers, "bytes",
                     INT(s->bytes), "client_version", s->client_version);
}

json_t *show_counters_json(Epd__V1__Counter *const *counters, size_t n)
{
    json_t *root = json_object();
    for (size_t i = 0; i < n; i++)
        (void)json_object_set_new(root, counters[i]->name, json_integer(INT(counters[i]->value)));
    return root;
}

struct table *show_device_table(void)
{
    static const char *const header[] = {"DEVICE",   "BACKEND", "STATE",  "PID",
                                         "RESTARTS", "SEATS",   "CHUNKS", "MEMORY",
                                         "OPS",      "WAKEUPS", "CAUSE",  NULL};
    return table_create(header);
}

void show_device_row(struct table *t, const Epd__V1__Device *d)
{
    char size[32];
    table_cell(t, "%u", d->index);
    table_cell(t, "%s", d->backend);
    table_cell(t, "%s", d->state);
    table_cell(t, "%u", d->pid);
    table_cell(t, "%u", d->restarts);
    table_cell(t, "%u", d->seats);
    table_cell(t, "%llu", (unsigned long long)d->chunks);
    table_cell(t, "%s", format_bytes(d->chunk_bytes, size, sizeof(size)));
    table_cell(t, "%llu", (unsigned long long)d->ops);
    table_cell(t, "%llu", (unsigned long long)d->wakeups);
    table_cell(t, "%s", d->cause);
}
