/* Sums of rows on the CPU: bit-exact on every machine (transport.h, epd_token_sum). Any thread. */
#ifndef EPD_ENGINE_HOST_MATH_H
#define EPD_ENGINE_HOST_MATH_H

#include "daemon/engine/transport.h"

typedef void epd_host_sum_fn(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype);

/* The fastest form that this CPU has. */
void epd_host_sum_token(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype);

/* All forms that this CPU has, fastest first, "scalar" last; NULL at the end. For tests (slow). */
struct epd_host_sum_form {
    const char *name;
    epd_host_sum_fn *sum;
};
const struct epd_host_sum_form *epd_host_sum_form(uint32_t index);

#endif
