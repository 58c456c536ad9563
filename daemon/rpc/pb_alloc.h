/* Memory of one unpacked request: zeroed, and no more than a cap altogether, because a megabyte of
 * tiny fields unpacks to thirty. Thread rule: one user at a time. */
#ifndef EPD_RPC_PB_ALLOC_H
#define EPD_RPC_PB_ALLOC_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

#define EPD_PB_CAP (4u << 20)

struct epd_pb_arena {
    ProtobufCAllocator allocator; /* its data is this struct: do not copy */
    size_t left;
};
void epd_pb_arena_init(struct epd_pb_arena *arena, size_t cap);

#endif
