/* A seat's ring area: entries in, completions out (proto/ring.h has the layout and the protocol).
 */
#ifndef EPD_ENGINE_RING_H
#define EPD_ENGINE_RING_H

#include <stdbool.h>

#include "proto/ring.h"

struct epd_op;
struct epd_seat;

/* Initialise (replay 0) or take over (replay 1) the ring area of the seat. */
void epd_ring_attach(struct epd_seat *seat, bool replay);
/* Copy the next entry if there is one. */
bool epd_ring_peek(const struct epd_seat *seat, struct epd_entry *out);
/* Sequentially consistent look at the next slot, for the sleep protocol. */
bool epd_ring_has_entry(const struct epd_seat *seat);
/* Post completion seat->posted for `op` (state DONE) and count it. */
void epd_ring_post(struct epd_seat *seat, struct epd_op *op);
void epd_ring_set_generation(struct epd_seat *seat);

#endif
