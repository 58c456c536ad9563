#include "daemon/rpc/pb_alloc.h"

#include <stdlib.h>

static void *arena_alloc(void *data, size_t size)
{
    struct epd_pb_arena *arena = data;
    if (size > arena->left)
        return NULL;
    arena->left -= size;
    return calloc(1, size > 0 ? size : 1);
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

void epd_pb_arena_init(struct epd_pb_arena *arena, size_t cap)
{
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->left = cap;
}
