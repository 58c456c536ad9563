#include "client/epdctl/replay.h"

#include <stdlib.h>
#include <string.h>

float replay_value(uint32_t layer, uint64_t g, uint32_t h)
{
    const uint64_t hh = h;
    const uint64_t v = 31 * g + 7 * hh + 13ull * layer + g / 257 * hh * hh;
    return ((float)(v % 257) - 128.0f) / 128.0f;
}

bool replay_inputs_init(struct replay_inputs *inputs, const struct replay_plan *plan,
                        const struct trace_layer *layer, uint32_t step)
{
    const uint64_t per_step = (uint64_t)plan->ranks * plan->batch;
    const uint64_t row_bytes = (uint64_t)plan->hidden * oracle_bytes(plan->dtype);
    memset(inputs, 0, sizeof(*inputs));
    inputs->layer = layer->layer;
    inputs->first = step * per_step;
    inputs->x = malloc(per_step * row_bytes);
    if (inputs->x == NULL)
        return false;
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const uint64_t begin = inputs->first + (uint64_t)r * plan->batch;
        const uint64_t left = begin < layer->rows ? layer->rows - begin : 0;
        struct oracle_input *in = &inputs->in[r];
        in->b = left < plan->batch ? (uint32_t)left : plan->batch;
        if (in->b > 0) {
            in->ids = layer->ids + begin * plan->trace.topk;
            in->weights = layer->weights + begin * plan->trace.topk;
        }
        uint8_t *x = inputs->x + (uint64_t)r * plan->batch * row_bytes;
        for (uint32_t t = 0; t < in->b; t++)
            for (uint32_t h = 0; h < plan->hidden; h++)
                oracle_store(plan->dtype, x, (uint64_t)t * plan->hidden + h,
                             replay_value(layer->layer, begin + t, h));
        in->x = x;
    }
    return true;
}

void replay_inputs_free(struct replay_inputs *inputs)
{
    free(inputs->x);
    inputs->x = NULL;
}
