/* Between the files of a seat. */
#ifndef EPD_TESTS_SEAT_INTERNAL_H
#define EPD_TESTS_SEAT_INTERNAL_H

#include "tests/support/seat.h"

/* Place the arrays; s->c is set. */
void seat_memory_plan(struct seat *s);
enum epd_status seat_memory_open(struct seat *s, struct epd_error *err);
/* call: unbind and free through the API, else only forget. */
void seat_memory_close(struct seat *s, bool call);

/* Where the words of an epoch are in `control`: kind 0 dispatch, 1 combine. */
static inline size_t seat_control_at(uint64_t epoch, uint32_t kind)
{
    return (size_t)((epoch % SEAT_TURNS) * 2u + kind) * 16u;
}

#endif
