/* What a session holds by fd: chunks (mapped), status pages (mapped read-only) and doorbells
 * (eventfds). Reference-counted: the session's list holds one reference of the newest object of a
 * {kind, id}; leases and buffers hold their own, so an engine restart can replace a status page
 * while another thread still reads the old one.
 *
 * Mappings are MADV_DONTFORK: a forked child, which the daemon does not know, must not keep a
 * chunk alive or write a ring. (The daemon gives memory to another uid only after every process
 * that mapped it has exited.)
 *
 * Thread rule: everything here under the session's lock. */
#ifndef EPD_CLIENT_MAPS_H
#define EPD_CLIENT_MAPS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/errors.h"
#include "proto/status.h"

enum epdc_map_kind { EPDC_MAP_CHUNK = 1, EPDC_MAP_STATUS, EPDC_MAP_DOORBELL };

struct epdc_map {
    struct epdc_map *next; /* owned by the list */
    enum epdc_map_kind kind;
    uint64_t id; /* chunk id, or device */
    uint32_t refs;
    int fd; /* owned; doorbell only, else -1 */
    void *addr;
    size_t bytes;
};

struct epdc_maps {
    struct epdc_map *head;
};

/* Take ownership of fd (closed on failure), map it as `kind` wants and put it in the list in the
 * place of an older one with the same kind and id. `bytes`: of a chunk, checked against the fd;
 * otherwise ignored. Errors: EINTERNAL (not what it should be), EVERSION (status page of another
 * ABI), ENOMEM, ESYS. */
enum epd_status epdc_maps_add(struct epdc_maps *maps, enum epdc_map_kind kind, uint64_t id,
                              uint64_t bytes, int fd, struct epd_error *err);
/* A new reference, or NULL when there is none. */
struct epdc_map *epdc_maps_get(struct epdc_maps *maps, enum epdc_map_kind kind, uint64_t id);
/* Drop a reference; the last one unmaps and closes. NULL is fine. */
void epdc_map_put(struct epdc_map *map);
/* Drop the list's references. forked: only free the memory (mappings do not exist in a child, and
 * its fd numbers may be others' by now). */
void epdc_maps_fini(struct epdc_maps *maps, int forked);
/* Incarnation that a mapped status page belongs to. */
uint64_t epdc_map_incarnation(const struct epdc_map *status);

static inline const struct epd_status_page *epdc_map_page(const struct epdc_map *status)
{
    return (const struct epd_status_page *)status->addr;
}

#endif
