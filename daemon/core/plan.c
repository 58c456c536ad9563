#include "daemon/core/plan.h"

#include "daemon/core/alloc.h"
#include "proto/exchange.h"
#include "proto/ring.h"

#define CHUNK_STEP (2u << 20)

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* ids int64 and weights of B tokens, counts, and the arrays beside the received rows. */
static uint64_t metadata(const struct epd_shape *s)
{
    const uint64_t k = s->topk, rows = epd_recv_rows(s);
    const uint64_t in = s->max_tokens * k * (8 + 4) + epd_counts_len(s) * 4ull + rows * 4;
    return s->layout == EPD_LAYOUT_EXPERT_MAJOR ? in + s->experts * 8ull : in + rows * k * (4 + 4);
}

enum epd_status epd_plan_group(const struct epd_shape *shape, struct epd_plan *out,
                               struct epd_error *err)
{
    const char *problem = epd_shape_problem(shape);
    if (problem != NULL)
        return epd_fail(err, EPD_EINVAL, "shape: %s", problem);
    const bool expert = shape->layout == EPD_LAYOUT_EXPERT_MAJOR;
    const uint64_t row = epd_row_bytes(shape);
    const uint64_t recv = epd_recv_rows(shape) * row;
    *out = (struct epd_plan){
        .term = {{"receive", expert ? "L*R*B*H*s" : "R*B*H*s", recv},
                 {"expert rows", expert ? "L*R*B*H*s" : "R*B*H*s", recv},
                 {"x and output", "2*B*H*s", 2 * shape->max_tokens * row},
                 {"metadata",
                  expert ? "B*K*12 + L*4 + L*R*B*4 + E*8" : "B*K*12 + R*4 + R*B*4 + R*B*K*8",
                  metadata(shape)},
                 {"control", "ring of 256", epd_ring_bytes(EPD_RING_DEPTH_DEFAULT)},
                 {"staging", "0 without imports", 0}},
        .engine_bytes = epd_exchange_bytes(shape),
    };
    uint64_t sum = 0;
    for (unsigned i = 0; i < EPD_PLAN_TERMS; i++)
        sum += round_up(out->term[i].bytes, EPD_ALLOC_ALIGN);
    out->seat_bytes = round_up(sum, CHUNK_STEP);
    out->group_bytes = out->seat_bytes * shape->ranks;
    return EPD_OK;
}
