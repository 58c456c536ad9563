/* The headers that host engine and kernels share, compiled as CUDA: one thread evaluates the slot
 * arithmetic on the device, so that a change which only compiles as C is a red build, and a GPU
 * test can compare the results with the host's. Geometry: one block, one thread. Writes out[0..5];
 * no waits, no flags. */
#include "proto/exchange.h"
#include "proto/layout.h"

static_assert(sizeof(struct epd_xheader) == 64, "one cache line");
static_assert(sizeof(struct epd_xcredit) == 128, "two cache lines");

__global__ void epd_layout_check_kernel(struct epd_shape shape, unsigned long long *out)
{
    const struct epd_exchange_map map = epd_exchange_layout(&shape);
    out[0] = map.bytes;
    out[1] = map.released;
    out[2] = epd_recv_rows(&shape);
    out[3] = epd_row_expert_major(&shape, epd_local_experts(&shape) - 1u, 1u, 2u);
    out[4] = epd_word_pack(4096u, 7u, 11u);
    out[5] = epd_shape_problem(&shape) == nullptr;
}

/* Launch on `stream` (a cudaStream_t); out: 6 words of device memory. Returns cudaError_t. */
extern "C" int epd_layout_check(const struct epd_shape *shape, unsigned long long *out,
                                void *stream)
{
    epd_layout_check_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(*shape, out);
    return static_cast<int>(cudaGetLastError());
}
