/* Groups that only note what they were called with, and answer what they are told: in place of
 * group.c, desc.c and change.c. Include it in one file of a test. */
#ifndef EPD_TEST_ENGINE_GROUPS_STUB_H
#define EPD_TEST_ENGINE_GROUPS_STUB_H

#include "daemon/engine/engine.h"

static struct {
    const char *call; /* the last one */
    enum epd_status answer;
    uint64_t group, revoke_seq, busy_chunk;
    int32_t rank;
    unsigned clears;
    enum epd_status poison;
} g_stub;

static enum epd_status stub(const char *call, uint64_t group, int32_t rank, struct epd_error *err)
{
    g_stub.call = call;
    g_stub.group = group;
    g_stub.rank = rank;
    return g_stub.answer == EPD_OK ? EPD_OK : epd_fail(err, g_stub.answer, "stub %s", call);
}

#define STUB(name, type, rank_)                                                                    \
    enum epd_status epd_groups_##name(struct epd_engine *engine, const struct type *msg,           \
                                      struct epd_error *err)                                       \
    {                                                                                              \
        (void)engine;                                                                              \
        return stub(#name, msg->group, (int32_t)(rank_), err);                                     \
    }
STUB(set, epd_msg_group, -1)
STUB(drop, epd_msg_epoch, msg->rank)
STUB(seat_set, epd_msg_seat, msg->rank)
STUB(desc_set, epd_msg_desc, msg->rank)
STUB(desc_clear, epd_msg_desc, msg->rank)
STUB(fail, epd_msg_epoch, msg->rank)
STUB(generation, epd_msg_epoch, msg->rank)
STUB(arm, epd_msg_epoch, msg->rank)

enum epd_status epd_groups_seat_clear(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                      struct epd_error *err)
{
    (void)engine;
    g_stub.clears++;
    return stub("seat_clear", msg->group, msg->rank, err);
}
enum epd_status epd_groups_revoke(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                  struct epd_error *err)
{
    (void)engine;
    g_stub.revoke_seq = msg->h.seq;
    return stub("revoke", msg->group, msg->rank, err);
}
enum epd_status epd_groups_stats(struct epd_engine *engine, const struct epd_msg_epoch *msg,
                                 struct epd_msg_group_stats *out, struct epd_error *err)
{
    (void)engine;
    out->seat[2].ops = 77;
    return stub("stats", msg->group, msg->rank, err);
}
void epd_groups_totals(const struct epd_engine *engine, uint32_t *groups, uint32_t *seats)
{
    (void)engine;
    *groups = 3;
    *seats = 5;
}
bool epd_groups_use_chunk(const struct epd_engine *engine, uint64_t chunk)
{
    (void)engine;
    return chunk == g_stub.busy_chunk;
}
void epd_groups_poison(struct epd_engine *engine, enum epd_status status)
{
    (void)engine;
    g_stub.poison = status;
}
#undef STUB

#endif
