/* Sums of rows on the CPU: bit-exact on every machine (transport.h, epd_token_sum). */
#ifndef EPD_ENGINE_HOST_MATH_H
#define EPD_ENGINE_HOST_MATH_H

#include "daemon/engine/transport.h"

void epd_host_sum_token(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype);

/* The portable form, for the tests that compare the two. */
void epd_host_sum_token_scalar(const struct epd_token_sum *token, uint32_t hidden, uint32_t dtype);

#endif
