/* State machines as tables. An object's life is an enum of states, an enum of events and one static
 * table of edges {from, event, to}; the object's only setter goes through epd_fsm_step, which
 * asserts the edge, counts it and logs it at debug. Thread rule: the loop's thread. */
#ifndef EPD_CORE_FSM_H
#define EPD_CORE_FSM_H

#include <stdbool.h>
#include <stdint.h>

struct epd_fsm_row {
    uint8_t from, event, to;
};

struct epd_fsm {
    const char *name;               /* "device" */
    const char *const *state_names; /* by enum value */
    const char *const *event_names; /* by enum value */
    const struct epd_fsm_row *rows;
    unsigned n_rows;
    uint64_t *taken; /* [n_rows]: how often each edge was taken, all objects together */
};

/* Is there an edge for the event? */
bool epd_fsm_allows(const struct epd_fsm *fsm, unsigned from, unsigned event);
/* The state after the event. No such edge is a bug of ours: logs and aborts. `object` names the
 * object in the log. */
unsigned epd_fsm_step(const struct epd_fsm *fsm, unsigned from, unsigned event, const char *object);

#endif
