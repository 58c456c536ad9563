/* Op descriptors of a seat: bound once, kept for replay after an engine restart. Thread rule: the
 * loop's thread. */
#ifndef EPD_CORE_DESC_H
#define EPD_CORE_DESC_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"

struct epd_session;
struct epd_lease;
struct epd_join;

struct epd_bind_array {
    uint64_t buffer; /* 0: absent */
    uint64_t offset, bytes, stride;
};
struct epd_bind_request {
    uint64_t lease;
    uint32_t kind, ids_type, sets;
    const struct epd_bind_array *arrays; /* [n], by enum epd_array_role; borrowed for the call */
    size_t n;
};
struct epd_desc_id {
    uint32_t index, generation;
};
typedef void (*epd_desc_fn)(void *arg, struct epd_desc_id id, const struct epd_error *err);

/* Errors: EPD_EINVAL naming the array, EPD_ENOENT, EPD_ESTALE, EPD_ELIMIT, EPD_EDEVICE. */
void epd_desc_bind(struct epd_session *session, const struct epd_bind_request *request,
                   epd_desc_fn fn, void *arg);
/* Errors: EPD_EBUSY (in flight), EPD_ENOENT, EPD_ESTALE. */
void epd_desc_unbind(struct epd_session *session, uint64_t lease, struct epd_desc_id id,
                     epd_done_fn fn, void *arg);

/* ---- inside core ---- */

void epd_desc_drop_lease(struct epd_lease *lease);
void epd_desc_replay(struct epd_lease *lease, struct epd_join *join);

#endif
