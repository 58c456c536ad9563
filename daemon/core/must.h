/* Memory for the supervisor's own small bookkeeping. Without it no promise about the objects of
 * clients can be kept, so it aborts (and is restarted) rather than go on half-blind. What a client
 * asks for is never allocated this way. */
#ifndef EPD_CORE_MUST_H
#define EPD_CORE_MUST_H

#include <stddef.h>

/* Zeroed; never NULL. */
void *epd_must_calloc(size_t bytes);
/* A copy of bytes; never NULL. */
void *epd_must_copy(const void *from, size_t bytes);

#endif
