#include "daemon/base/handles.h"

#include <stddef.h>
#include <stdlib.h>

#include "daemon/base/util.h"

struct epd_handle_slot {
    void *obj; /* borrowed; NULL: free */
    uint32_t generation;
    uint32_t next_free; /* 1 + index, 0: end */
};

void epd_handles_init(struct epd_handles *table, uint32_t limit)
{
    *table = (struct epd_handles){.limit = limit};
}

void epd_handles_fini(struct epd_handles *table)
{
    free(table->slots);
    *table = (struct epd_handles){0};
}

enum epd_status epd_handles_add(struct epd_handles *table, void *obj, struct epd_handle *out,
                                struct epd_error *err)
{
    if (table->used >= table->limit)
        return epd_fail(err, EPD_ELIMIT, "table is full: limit %u", table->limit);
    uint32_t index;
    if (table->first_free != 0) {
        index = table->first_free - 1;
        table->first_free = table->slots[index].next_free;
    } else {
        struct epd_handle_slot *grown =
            realloc(table->slots, (table->n_slots + 1u) * sizeof(*grown));
        if (grown == NULL)
            return epd_fail(err, EPD_ENOMEM, "no memory for slot %u", table->n_slots);
        table->slots = grown;
        index = table->n_slots++;
        table->slots[index].generation = 0;
    }
    struct epd_handle_slot *slot = &table->slots[index];
    if (++slot->generation == 0)
        slot->generation = 1;
    slot->obj = obj;
    table->used++;
    *out = (struct epd_handle){.index = index, .generation = slot->generation};
    return EPD_OK;
}

enum epd_status epd_handles_get(const struct epd_handles *table, struct epd_handle handle,
                                void **out, struct epd_error *err)
{
    if (handle.generation == 0 || handle.index >= table->n_slots ||
        handle.generation > table->slots[handle.index].generation)
        return epd_fail(err, EPD_ENOENT, "id %u.%u does not exist", handle.index,
                        handle.generation);
    const struct epd_handle_slot *slot = &table->slots[handle.index];
    if (slot->obj == NULL || slot->generation != handle.generation)
        return epd_fail(err, EPD_ESTALE, "id %u.%u is stale: its object is gone", handle.index,
                        handle.generation);
    *out = slot->obj;
    return EPD_OK;
}

void epd_handles_remove(struct epd_handles *table, struct epd_handle handle)
{
    epd_assert(handle.index < table->n_slots);
    struct epd_handle_slot *slot = &table->slots[handle.index];
    epd_assert(slot->obj != NULL && slot->generation == handle.generation);
    slot->obj = NULL;
    slot->next_free = table->first_free;
    table->first_free = handle.index + 1;
    table->used--;
}

void *epd_handles_next(const struct epd_handles *table, uint32_t *cursor)
{
    while (*cursor < table->n_slots) {
        void *obj = table->slots[(*cursor)++].obj;
        if (obj != NULL)
            return obj;
    }
    return NULL;
}
