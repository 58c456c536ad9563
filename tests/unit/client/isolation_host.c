/* A program with a gRPC of its own that must never be called by libepd: it exports the functions
 * that libepd-rpc.so uses, and each of them aborts. Built and run by isolation_test.sh.
 * Usage: isolation_host SOCKET */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/epd.h"

#define TRAP(name)                                                                                 \
    __attribute__((visibility("default"))) void name(void);                                        \
    void name(void)                                                                                \
    {                                                                                              \
        fprintf(stderr, "the program's own " #name " was called\n");                               \
        abort();                                                                                   \
    }
TRAP(grpc_init)
TRAP(grpc_shutdown)
TRAP(grpc_is_initialized)
TRAP(grpc_channel_create)
TRAP(grpc_channel_destroy)
TRAP(grpc_channel_create_call)
TRAP(grpc_channel_create_registered_call)
TRAP(grpc_channel_register_call)
TRAP(grpc_insecure_credentials_create)
TRAP(grpc_channel_credentials_release)
TRAP(grpc_completion_queue_create_for_pluck)
TRAP(grpc_completion_queue_create_for_next)
TRAP(grpc_completion_queue_pluck)
TRAP(grpc_completion_queue_next)
TRAP(grpc_completion_queue_shutdown)
TRAP(grpc_completion_queue_destroy)
TRAP(grpc_call_start_batch)
TRAP(grpc_call_cancel)
TRAP(grpc_call_unref)
TRAP(grpc_slice_from_copied_buffer)
TRAP(grpc_slice_from_copied_string)
TRAP(grpc_slice_from_static_string)
TRAP(grpc_slice_malloc)
TRAP(grpc_slice_unref)
TRAP(grpc_raw_byte_buffer_create)
TRAP(grpc_byte_buffer_destroy)
TRAP(grpc_byte_buffer_reader_init)
TRAP(grpc_byte_buffer_reader_readall)
TRAP(grpc_byte_buffer_reader_destroy)
TRAP(grpc_metadata_array_init)
TRAP(grpc_metadata_array_destroy)
TRAP(gpr_malloc)
TRAP(gpr_free)
TRAP(gpr_now)
TRAP(gpr_time_add)
TRAP(gpr_inf_future)
TRAP(gpr_inf_past)
TRAP(grpc_empty_slice)
TRAP(grpc_slice_str_cmp)
TRAP(gpr_time_from_nanos)
TRAP(gpr_set_log_function)
TRAP(gpr_set_log_verbosity)

static int use(struct epd *epd, struct epd_error *err)
{
    struct epd_group_config config = EPD_GROUP_CONFIG_INIT;
    struct epd_group_info group = EPD_GROUP_INFO_INIT;
    struct epd_lease *lease = NULL;
    struct epd_buffer *buffer = NULL;
    config.name = "isolation";
    config.ranks = 1;
    config.experts = 2;
    config.max_tokens = 4;
    config.topk = 1;
    config.hidden = 16;
    config.dtype = EPD_FP32;
    config.ephemeral = 1;
    if (epd_group_create(epd, &config, &group, err) != EPD_OK ||
        epd_lease_acquire(epd, group.id, 0, NULL, &lease, err) != EPD_OK ||
        epd_buffer_alloc(epd, epd_lease_device(lease), 4096, &buffer, err) != EPD_OK)
        return 1;
    memset(epd_buffer_ptr(buffer), 1, 4096);
    return epd_buffer_free(buffer, err) != EPD_OK;
}

int main(int argc, char **argv)
{
    struct epd_open_options options = EPD_OPEN_OPTIONS_INIT;
    struct epd_error err = {.message = ""};
    struct epd *epd = NULL;
    options.socket = argc > 1 ? argv[1] : NULL;
    options.wait_daemon = 1;
    if (epd_open(&options, &epd, &err) != EPD_OK || use(epd, &err) != 0) {
        fprintf(stderr, "%s: %s\n", epd_status_string(err.status), err.message);
        epd_close(epd);
        return 1;
    }
    epd_close(epd);
    printf("ok - libepd used its own gRPC\n");
    return 0;
}
