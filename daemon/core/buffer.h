/* Buffers: ranges of a session's own chunks, or imported memory of the client. Thread rule: the
 * loop's thread. */
#ifndef EPD_CORE_BUFFER_H
#define EPD_CORE_BUFFER_H

#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/session.h"

struct epd_buffer;
struct epd_chunk;

struct epd_buffer_info {
    uint64_t buffer, chunk, offset, bytes;
    struct epd_grant_info grants[1];
    unsigned n_grants;
    uint8_t token[EPD_TOKEN_BYTES]; /* import, step 1 */
    bool has_token;
};
typedef void (*epd_buffer_fn)(void *arg, const struct epd_buffer_info *info,
                              const struct epd_error *err);

/* Zeroed memory. Errors: EPD_EINVAL, EPD_ELIMIT, EPD_ENOMEM, EPD_EDEVICE. */
void epd_buffer_create(struct epd_session *session, uint32_t device, uint64_t bytes,
                       epd_buffer_fn fn, void *arg);
/* Memory of the client. Without a token: a token to send the memfd with. With it: the buffer.
 * Errors: EPD_EINVAL (also: what the memfd lacks), EPD_EAGAIN (no memfd has come), ... */
struct epd_import_request {
    uint32_t device;
    uint64_t bytes;
    const uint8_t *token;
    size_t token_len;
};
void epd_buffer_import(struct epd_session *session, const struct epd_import_request *request,
                       epd_buffer_fn fn, void *arg);
/* Errors: EPD_EBUSY (ops are bound), EPD_ENOENT, EPD_ESTALE. */
enum epd_status epd_buffer_free(struct epd_session *session, uint64_t buffer,
                                struct epd_error *err);

/* ---- inside core ---- */

struct epd_buffer_view {
    const struct epd_chunk *chunk;
    uint64_t offset, bytes;
    unsigned device;
    bool import;
};
/* Errors: EPD_ENOENT, EPD_ESTALE. */
enum epd_status epd_buffer_get(struct epd_session *session, uint64_t id, struct epd_buffer **out,
                               struct epd_error *err);
void epd_buffer_look(const struct epd_buffer *buffer, struct epd_buffer_view *out);
/* An op is bound to it / no longer. */
void epd_buffer_hold(struct epd_buffer *buffer);
void epd_buffer_release(struct epd_buffer *buffer);
/* Free all buffers of a session whose leases are gone; its chunks go afterwards. */
void epd_buffer_drop_session(struct epd_session *session);

#endif
