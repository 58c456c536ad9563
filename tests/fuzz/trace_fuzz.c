/* Any bytes as a routing trace: an error that names a line, or a trace whose every id is in range.
 */
#include <stdint.h>
#include <stdlib.h>

#include "client/epdctl/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct trace trace;
    struct epd_error err = {.status = EPD_OK};
    if (trace_parse("fuzz", (const char *)data, size, &trace, &err) != EPD_OK) {
        if (err.status == EPD_OK || err.message[0] == 0)
            abort();
        return 0;
    }
    for (uint32_t l = 0; l < trace.n_layers; l++)
        for (uint64_t i = 0; i < (uint64_t)trace.layers[l].rows * trace.topk; i++)
            if (trace.layers[l].ids[i] < 0 || trace.layers[l].ids[i] >= trace.experts)
                abort();
    trace_free(&trace);
    return 0;
}
