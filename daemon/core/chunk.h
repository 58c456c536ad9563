/* Chunks: the unit of memory that an engine creates, other engines adopt and, when it belongs to a
 * session, a client maps. The supervisor keeps a descriptor of each, so a chunk survives the death
 * of its engine. Thread rule: the loop's thread. */
#ifndef EPD_CORE_CHUNK_H
#define EPD_CORE_CHUNK_H

#include <stdint.h>

#include "daemon/core/core_internal.h"
#include "daemon/core/join.h"

#define EPD_CHUNK_STEP (2u << 20) /* sizes of session chunks are multiples of it */

struct epd_chunk_spec {
    enum epd_chunk_kind kind;
    unsigned device;
    uint64_t bytes;
    struct epd_session *session; /* borrowed; or NULL */
    struct epd_group *group;     /* borrowed; or NULL */
};

typedef void (*epd_chunk_fn)(void *arg, struct epd_chunk *chunk, const struct epd_error *err);

/* Create it on its device and make all engines that need it adopt it. The session's bytes are
 * checked against the user's limit (EPD_ELIMIT) and counted at once. Errors: EPD_EDEVICE, ... */
void epd_chunk_create(struct epd_core *core, const struct epd_chunk_spec *spec, epd_chunk_fn done,
                      void *arg);
/* The same for memory of the client: fd is taken over, also on failure. */
void epd_chunk_import(struct epd_core *core, const struct epd_chunk_spec *spec, int fd,
                      epd_chunk_fn done, void *arg);
/* Forget it everywhere. Nothing may use it any more. NULL is fine. */
void epd_chunk_drop(struct epd_core *core, struct epd_chunk *chunk);
/* Tell a device that has just been configured about every chunk it needs. */
void epd_chunk_replay(struct epd_core *core, struct epd_device *device, struct epd_join *join);
/* A range of a session's chunk of this kind on this device: from a chunk it has, or a new one of
 * max(least, bytes) rounded up. Zeroed. */
struct epd_range {
    struct epd_chunk *chunk; /* borrowed */
    uint64_t offset, bytes;
};
typedef void (*epd_range_fn)(void *arg, const struct epd_range *range, const struct epd_error *err);
void epd_chunk_take_range(const struct epd_chunk_spec *spec, uint64_t least, epd_range_fn done,
                          void *arg);
/* Zeroes it and gives it back, a large one a while later. */
void epd_chunk_give_range(struct epd_core *core, const struct epd_range *range);

#endif
