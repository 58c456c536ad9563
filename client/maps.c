#include "client/maps.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/fail.h"
#include "proto/version.h"

static enum epd_status map_fd(struct epdc_map *m, int fd, int prot, struct epd_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return epdc_fail_errno(err, "shared memory %llu: fstat", (unsigned long long)m->id);
    if (m->bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size < m->bytes)
        return epdc_fail(err, EPD_EINTERNAL, "shared memory %llu: %lld bytes, the grant says %zu",
                         (unsigned long long)m->id, (long long)st.st_size, m->bytes);
    void *addr = mmap(NULL, m->bytes, prot, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return epdc_fail_errno(err, "shared memory %llu: mmap of %zu bytes",
                               (unsigned long long)m->id, m->bytes);
    (void)madvise(addr, m->bytes, MADV_DONTFORK); /* without it a child only inherits more */
    m->addr = addr;
    return EPD_OK;
}

static enum epd_status check_page(const struct epdc_map *m, struct epd_error *err)
{
    const struct epd_status_page *page = epdc_map_page(m);
    if (page->magic != EPD_STATUS_MAGIC || page->device != m->id)
        return epdc_fail(err, EPD_EINTERNAL, "status page of device %llu is not one",
                         (unsigned long long)m->id);
    if (page->abi != EPD_ABI_VERSION)
        return epdc_fail(err, EPD_EVERSION,
                         "shared-memory ABI: libepd has %u, the engine of device %llu has %u; "
                         "install one release on both sides",
                         EPD_ABI_VERSION, (unsigned long long)m->id, page->abi);
    return EPD_OK;
}

static void destroy(struct epdc_map *m)
{
    if (m->addr)
        (void)munmap(m->addr, m->bytes); /* our own mapping */
    if (m->fd >= 0)
        (void)close(m->fd); /* nothing to do about a failure */
    free(m);
}

static void unlink_same(struct epdc_maps *maps, enum epdc_map_kind kind, uint64_t id)
{
    for (struct epdc_map **at = &maps->head; *at; at = &(*at)->next) {
        struct epdc_map *old = *at;
        if (old->kind == kind && old->id == id) {
            *at = old->next;
            old->next = NULL;
            epdc_map_put(old);
            return;
        }
    }
}

enum epd_status epdc_maps_add(struct epdc_maps *maps, enum epdc_map_kind kind, uint64_t id,
                              uint64_t bytes, int fd, struct epd_error *err)
{
    enum epd_status status = EPD_OK;
    struct epdc_map *m = calloc(1, sizeof(*m));
    if (!m) {
        (void)close(fd); /* taken over */
        return epdc_fail(err, EPD_ENOMEM, "no memory for a mapping");
    }
    *m = (struct epdc_map){.kind = kind, .id = id, .refs = 1, .fd = fd};
    if (kind == EPDC_MAP_CHUNK) {
        m->bytes = (size_t)bytes;
        status = map_fd(m, fd, PROT_READ | PROT_WRITE, err);
    } else if (kind == EPDC_MAP_STATUS) {
        m->bytes = EPD_STATUS_PAGE_BYTES;
        status = map_fd(m, fd, PROT_READ, err);
        if (status == EPD_OK)
            status = check_page(m, err);
    }
    if (status != EPD_OK) {
        destroy(m);
        return status;
    }
    if (kind != EPDC_MAP_DOORBELL) {
        (void)close(fd); /* the mapping stays */
        m->fd = -1;
    }
    unlink_same(maps, kind, id);
    m->next = maps->head;
    maps->head = m;
    return EPD_OK;
}

struct epdc_map *epdc_maps_get(struct epdc_maps *maps, enum epdc_map_kind kind, uint64_t id)
{
    for (struct epdc_map *m = maps->head; m; m = m->next) {
        if (m->kind == kind && m->id == id) {
            m->refs++;
            return m;
        }
    }
    return NULL;
}

void epdc_map_put(struct epdc_map *map)
{
    if (map && --map->refs == 0)
        destroy(map);
}

void epdc_maps_fini(struct epdc_maps *maps, int forked)
{
    while (maps->head) {
        struct epdc_map *m = maps->head;
        maps->head = m->next;
        if (forked)
            free(m);
        else
            epdc_map_put(m);
    }
}

uint64_t epdc_map_incarnation(const struct epdc_map *status)
{
    return epdc_map_page(status)->incarnation;
}
