/* Groups: name, shape, placement, owner; their creation and end. What happens between is change.h
 * (generations), epoch.h (failed epochs) and lease.h (seats). Thread rule: the loop's thread. */
#ifndef EPD_CORE_GROUP_H
#define EPD_CORE_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/fsm.h"
#include "proto/layout.h"

extern const struct epd_fsm epd_group_fsm;

struct epd_group;
struct epd_session;
struct epd_device;

struct epd_group_request {
    const char *name;
    struct epd_shape shape;
    uint32_t timeout_ms, first_timeout_ms; /* 0: default */
    bool ephemeral, allow_absent;
    const uint32_t *placement; /* [n_placement]: one device a rank; n_placement 0: the rule */
    size_t n_placement;
    const uint8_t *key;
    size_t key_len; /* 0: none */
};
typedef void (*epd_group_fn)(void *arg, struct epd_group *group, const struct epd_error *err);

/* Strings and arrays of the request are borrowed for the call. Errors: EPD_EINVAL naming the field,
 * EPD_EEXIST, EPD_ELIMIT, EPD_EDEVICE. */
void epd_group_create(struct epd_session *session, const struct epd_group_request *request,
                      epd_group_fn fn, void *arg);
/* Errors: EPD_ENOENT. */
enum epd_status epd_group_open(struct epd_core *core, const char *name, struct epd_group **out,
                               struct epd_error *err);
/* Errors: EPD_EBUSY (leased, no force), EPD_EPERM, EPD_ENOENT, EPD_ESTALE. */
struct epd_group_admin {
    uint64_t group;
    const struct epd_peer *caller; /* the creator's uid or an administrator */
    bool force;
};
void epd_group_destroy(struct epd_core *core, const struct epd_group_admin *request, epd_done_fn fn,
                       void *arg);
/* New generation; answered when it is there. */
void epd_group_reset(struct epd_core *core, const struct epd_group_admin *request, epd_group_fn fn,
                     void *arg);

/* Devices of the ranks: explicit ones checked against n_devices, or the rule.
 * Errors: EPD_EINVAL naming the rank. */
struct epd_placement_request {
    const uint32_t *explicit_devices; /* [n], or n = 0 */
    size_t n;
    unsigned n_devices;
    bool roundrobin;
};
enum epd_status epd_group_place(const struct epd_shape *shape,
                                const struct epd_placement_request *request,
                                uint8_t device_out[EPD_MAX_RANKS], struct epd_error *err);
/* 1..63 of [A-Za-z0-9._-]. */
bool epd_group_name_valid(const char *name);

/* ---- inside core ---- */

enum epd_group_event {
    EPD_GROUP_EV_CREATED,
    EPD_GROUP_EV_CHANGE,     /* a cause for a new generation */
    EPD_GROUP_EV_REVOKED,    /* no engine writes any more */
    EPD_GROUP_EV_ALL_ACKED,  /* all engines have the new generation */
    EPD_GROUP_EV_SOME_ACKED, /* all that run */
    EPD_GROUP_EV_DEVICE_UP,
    EPD_GROUP_EV_ARMED,      /* all engines take entries; every lessee knows the generation */
    EPD_GROUP_EV_ARMED_SOME, /* the same, but some lessee has not rearmed */
    EPD_GROUP_EV_REARMED,    /* the last lessee has */
    EPD_GROUP_EV_DROP,
    EPD_GROUP_EV_DROPPED,
};
void epd_group_set_state(struct epd_group *group, enum epd_group_event event);
/* Ops run: a lease may begin, an epoch may fail. */
bool epd_group_stable(const struct epd_group *group);
enum epd_status epd_group_get(struct epd_core *core, uint64_t id, struct epd_group **out,
                              struct epd_error *err);
/* One request in flight, or an open handle, less; frees a group that is gone. */
void epd_group_put(struct epd_group *group);
bool epd_group_has_leases(const struct epd_group *group);
/* Begin the end; no lease is left and the engines are quiet for it. */
void epd_group_drop(struct epd_group *group);
/* Its session ends: ephemeral groups that nobody has leased end too. */
void epd_group_creator_gone(struct epd_core *core, uint64_t session);
/* An allow_absent group's ranks that take part; else all. */
uint64_t epd_group_present(const struct epd_group *group);
struct epd_join;
/* Tell a restarted engine about the group and its seats (unarmed). */
void epd_group_replay(struct epd_group *group, struct epd_device *device, struct epd_join *join);

#endif
