/* Fault points: places that a test can make fail. EPD_FAULTS="name:nth,name:nth-,name" in the
 * environment makes the nth passage (from 1) of a point fail; "nth-" that one and all later ones;
 * a name alone all of them. Without the variable a point costs one load. -DEPD_NO_FAULTS (make
 * FAULTS=0) compiles them out. A point stands where the real failure would:
 *     if (EPD_FAULT("memfd.create"))
 *         errno = ENOMEM, fd = -1;
 * Names are "<object>.<verb>". Thread-safe. */
#ifndef EPD_BASE_FAULT_H
#define EPD_BASE_FAULT_H

#include <stdbool.h>

#ifdef EPD_NO_FAULTS
#define EPD_FAULT(name) false
#else
#define EPD_FAULT(name) epd_fault_hit(name)
#endif

/* Count a passage of the point; true when it shall fail. The environment is read once, at the first
 * call; malformed entries are reported on the log and ignored. */
bool epd_fault_hit(const char *name);
/* Replace what is set ("" or NULL: nothing); counting starts anew. For tests; no other thread may
 * be inside a point. */
void epd_fault_set(const char *faults);

#endif
