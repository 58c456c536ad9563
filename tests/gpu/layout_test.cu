/* The arithmetic that host engine and kernels share gives on the GPU what it gives on the host. */
#include <cstdio>
#include <cuda_runtime.h>

#include "proto/exchange.h"
#include "proto/layout.h"

extern "C" int epd_layout_check(const struct epd_shape *shape, unsigned long long *out,
                                void *stream);

static int check(const struct epd_shape &s, unsigned long long *device)
{
    const struct epd_exchange_map map = epd_exchange_layout(&s);
    const unsigned long long want[6] = {
        map.bytes,
        map.released,
        epd_recv_rows(&s),
        epd_row_expert_major(&s, epd_local_experts(&s) - 1u, 1u, 2u),
        epd_word_pack(4096u, 7u, 11u),
        epd_shape_problem(&s) == nullptr,
    };
    unsigned long long got[6] = {};
    if (epd_layout_check(&s, device, nullptr) != 0 ||
        cudaMemcpy(got, device, sizeof(got), cudaMemcpyDeviceToHost) != cudaSuccess) {
        std::printf("R %u E %u: launch or copy failed\n", s.ranks, s.experts);
        return 1;
    }
    for (int i = 0; i < 6; i++)
        if (got[i] != want[i]) {
            std::printf("R %u E %u: word %d is %llu on the GPU, %llu on the host\n", s.ranks,
                        s.experts, i, got[i], want[i]);
            return 1;
        }
    return 0;
}

int main()
{
    unsigned long long *device = nullptr;
    int passed = 0, failed = 0;
    if (cudaMalloc(&device, 6 * sizeof(*device)) != cudaSuccess) {
        std::printf("skip: no usable GPU\n");
        return 77;
    }
    for (unsigned ranks = 1; ranks <= 64; ranks *= 2)
        for (unsigned experts = ranks; experts <= 1024; experts *= 2)
            for (unsigned layout = 1; layout <= 2; layout++) {
                const struct epd_shape s = {ranks, experts, 128, 8, 7168, EPD_DTYPE_BF16,
                                            EPD_MODE_LL, layout};
                if (check(s, device) == 0)
                    passed++;
                else
                    failed++;
            }
    cudaFree(device);
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
