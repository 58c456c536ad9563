/* GetStatus, ListSessions, ListDevices, ListTables. */
#include "daemon/core/status.h"

#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/util.h"
#include "daemon/rpc/control_wire.h"
#include "proto/version.h"

#define COUNTERS_MAX 64u

static char *read_only(const char *text)
{
    return (char *)(uintptr_t)text; /* only read while packing */
}

/* ---- devices ---- */

struct devices {
    unsigned n;
    struct epd_device_info info[EPD_MAX_DEVICES];
    Epd__V1__Device device[EPD_MAX_DEVICES];
    Epd__V1__Device *refs[EPD_MAX_DEVICES];
};

static void fill_devices(struct epd_control *control, unsigned n, struct devices *d)
{
    d->n = n;
    for (unsigned i = 0; i < n; i++) {
        const struct epd_device_info *info = &d->info[i];
        Epd__V1__Device *to = &d->device[i];
        epd_status_device(control->options.core, i, &d->info[i]);
        epd__v1__device__init(to);
        to->index = info->index;
        to->backend = read_only(control->options.backend);
        to->state = read_only(info->state);
        to->incarnation = info->incarnation;
        to->pid = (uint32_t)info->pid;
        to->workers = info->workers;
        to->restarts = info->restarts;
        to->cause = read_only(info->cause);
        to->chunks = info->chunks;
        to->chunk_bytes = info->chunk_bytes;
        to->ops = info->ops;
        to->tasks = info->tasks;
        to->wakeups = info->wakeups;
        to->seats = info->seats;
        to->mode = read_only("threads");
        d->refs[i] = to;
    }
}

void epd_control_list_devices(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__ListDevicesReply reply = EPD__V1__LIST_DEVICES_REPLY__INIT;
    struct epd_status_summary summary;
    struct devices devices;
    (void)msg;
    (void)len;
    epd_status_summary(control->options.core, &summary);
    fill_devices(control, summary.devices, &devices);
    reply.n_devices = devices.n;
    reply.devices = devices.refs;
    epd_wire_reply(call, &reply.base);
}

/* ---- status ---- */

struct counters {
    size_t n;
    Epd__V1__Counter counter[COUNTERS_MAX];
    Epd__V1__Counter *refs[COUNTERS_MAX];
};

static void fill_counters(const struct epd_core *core, struct counters *c)
{
    struct epd_status_counter row;
    c->n = 0;
    for (unsigned i = 0; i < COUNTERS_MAX && epd_status_counter(core, i, &row); i++) {
        epd__v1__counter__init(&c->counter[i]);
        c->counter[i].name = read_only(row.name);
        c->counter[i].help = read_only(row.help);
        c->counter[i].value = row.value;
        c->refs[i] = &c->counter[i];
        c->n++;
    }
}

void epd_control_get_status(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    Epd__V1__StatusReply reply = EPD__V1__STATUS_REPLY__INIT;
    struct epd_status_summary summary;
    struct devices devices;
    struct counters counters;
    char *problems[EPD_STATUS_PROBLEMS];
    (void)msg;
    (void)len;
    epd_status_summary(control->options.core, &summary);
    fill_devices(control, summary.devices, &devices);
    fill_counters(control->options.core, &counters);
    for (unsigned i = 0; i < summary.n_problems; i++)
        problems[i] = summary.problem[i];
    reply.version = read_only(EPD_VERSION);
    reply.protocol = EPD_PROTOCOL_VERSION;
    reply.abi = EPD_ABI_VERSION;
    reply.pid = (uint32_t)getpid();
    reply.node = read_only(control->options.node);
    reply.backend = read_only(control->options.backend);
    reply.state = read_only(summary.state);
    reply.isolation = read_only("full");
    reply.uptime_ms = summary.uptime_ms;
    reply.sessions = summary.sessions;
    reply.groups = summary.groups;
    reply.n_devices = devices.n;
    reply.devices = devices.refs;
    reply.n_counters = counters.n;
    reply.counters = counters.refs;
    reply.n_problems = summary.n_problems;
    reply.problems = problems;
    reply.socket = read_only(control->options.socket);
    epd_wire_reply(call, &reply.base);
}

/* ---- sessions ---- */

static void fill_session(const struct epd_status_session *from, Epd__V1__SessionInfo *to)
{
    epd__v1__session_info__init(to);
    to->id = from->id;
    to->name = read_only(from->name);
    to->uid = (uint32_t)from->uid;
    to->pid = (uint32_t)from->pid;
    to->state = read_only(from->state);
    to->age_ms = from->age_ms;
    to->leases = from->leases;
    to->buffers = from->buffers;
    to->bytes = from->bytes;
    to->client_version = read_only(from->version);
}

void epd_control_list_sessions(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    const struct epd_core *core = control->options.core;
    Epd__V1__ListSessionsReply reply = EPD__V1__LIST_SESSIONS_REPLY__INIT;
    const size_t cap = epd_core_sessions(core);
    struct epd_status_session row;
    uint32_t cursor = 0;
    (void)msg;
    (void)len;
    Epd__V1__SessionInfo *infos = calloc(cap + 1, sizeof(*infos));
    Epd__V1__SessionInfo **refs = calloc(cap + 1, sizeof(*refs));
    if (infos == NULL || refs == NULL) {
        epd_rpc_call_fail(call, EPD_ENOMEM, "no memory for the list");
    } else {
        while (reply.n_sessions < cap && epd_status_session(core, &cursor, &row)) {
            fill_session(&row, &infos[reply.n_sessions]);
            refs[reply.n_sessions] = &infos[reply.n_sessions];
            reply.n_sessions++;
        }
        reply.sessions = refs;
        epd_wire_reply(call, &reply.base);
    }
    free(refs);
    free(infos);
}

/* ---- state machines ---- */

#define TABLES_MAX 8u
#define ROWS_MAX 128u

struct tables {
    Epd__V1__Table table[TABLES_MAX];
    Epd__V1__Table *refs[TABLES_MAX];
    Epd__V1__TableRow row[ROWS_MAX];
    Epd__V1__TableRow *rows[ROWS_MAX];
    size_t n_tables, n_rows;
};

static void add_table(struct tables *t, const struct epd_fsm *fsm)
{
    Epd__V1__Table *table = &t->table[t->n_tables];
    epd_assert(t->n_tables < TABLES_MAX && t->n_rows + fsm->n_rows <= ROWS_MAX);
    epd__v1__table__init(table);
    table->name = read_only(fsm->name);
    table->rows = &t->rows[t->n_rows];
    table->n_rows = fsm->n_rows;
    for (unsigned i = 0; i < fsm->n_rows; i++) {
        Epd__V1__TableRow *row = &t->row[t->n_rows];
        epd__v1__table_row__init(row);
        row->from = read_only(fsm->state_names[fsm->rows[i].from]);
        row->event = read_only(fsm->event_names[fsm->rows[i].event]);
        row->to = read_only(fsm->state_names[fsm->rows[i].to]);
        t->rows[t->n_rows++] = row;
    }
    t->refs[t->n_tables++] = table;
}

void epd_control_list_tables(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    Epd__V1__ListTablesReply reply = EPD__V1__LIST_TABLES_REPLY__INIT;
    struct tables tables = {.n_tables = 0};
    (void)msg;
    (void)len;
    (void)ctx;
    for (unsigned i = 0; epd_status_table(i) != NULL; i++)
        add_table(&tables, epd_status_table(i));
    reply.n_tables = tables.n_tables;
    reply.tables = tables.refs;
    epd_wire_reply(call, &reply.base);
}
