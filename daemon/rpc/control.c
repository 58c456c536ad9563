#include "daemon/rpc/control.h"

#include <stdlib.h>

#include "daemon/base/util.h"
#include "daemon/rpc/control_wire.h"

#define PREFIX "/epd.v1.Control/"

static const struct {
    const char *path;
    enum epd_rpc_kind kind;
    epd_control_handler *handle;
} g_methods[] = {
    {PREFIX "GetVersion", EPD_RPC_UNARY, epd_control_get_version},
    {PREFIX "Attach", EPD_RPC_UNARY, epd_control_attach},
    {PREFIX "Detach", EPD_RPC_UNARY, epd_control_detach},
    {PREFIX "CreateGroup", EPD_RPC_UNARY, epd_control_create_group},
    {PREFIX "OpenGroup", EPD_RPC_UNARY, epd_control_open_group},
    {PREFIX "DestroyGroup", EPD_RPC_UNARY, epd_control_destroy_group},
    {PREFIX "ResetGroup", EPD_RPC_UNARY, epd_control_reset_group},
    {PREFIX "PlanGroup", EPD_RPC_UNARY, epd_control_plan_group},
    {PREFIX "AcquireLease", EPD_RPC_UNARY, epd_control_acquire_lease},
    {PREFIX "ReleaseLease", EPD_RPC_UNARY, epd_control_release_lease},
    {PREFIX "Rearm", EPD_RPC_UNARY, epd_control_rearm},
    {PREFIX "AllocBuffer", EPD_RPC_UNARY, epd_control_alloc_buffer},
    {PREFIX "ImportBuffer", EPD_RPC_UNARY, epd_control_import_buffer},
    {PREFIX "FreeBuffer", EPD_RPC_UNARY, epd_control_free_buffer},
    {PREFIX "BindOp", EPD_RPC_UNARY, epd_control_bind_op},
    {PREFIX "UnbindOp", EPD_RPC_UNARY, epd_control_unbind_op},
    {PREFIX "GetStatus", EPD_RPC_UNARY, epd_control_get_status},
    {PREFIX "ListGroups", EPD_RPC_UNARY, epd_control_list_groups},
    {PREFIX "ListSessions", EPD_RPC_UNARY, epd_control_list_sessions},
    {PREFIX "ListDevices", EPD_RPC_UNARY, epd_control_list_devices},
    {PREFIX "ListTables", EPD_RPC_UNARY, epd_control_list_tables},
    {PREFIX "WatchEvents", EPD_RPC_STREAM, epd_control_watch_events},
};
_Static_assert(EPD_ARRAY_LEN(g_methods) == EPD_CONTROL_METHODS, "keep control.h in step");

struct epd_control *epd_control_create(const struct epd_control_options *options)
{
    struct epd_control *control = calloc(1, sizeof(*control));
    epd_assert(control != NULL);
    control->options = *options;
    return control;
}

void epd_control_destroy(struct epd_control *control)
{
    if (control == NULL)
        return;
    epd_assert(control->streams == NULL);
    free(control);
}

void epd_control_methods(struct epd_control *control, struct epd_rpc_method *methods, unsigned *n,
                         unsigned cap)
{
    for (size_t i = 0; i < EPD_ARRAY_LEN(g_methods); i++) {
        epd_assert(*n < cap);
        methods[(*n)++] = (struct epd_rpc_method){
            .path = g_methods[i].path,
            .kind = g_methods[i].kind,
            .handle = g_methods[i].handle,
            .ctx = control,
        };
    }
}
