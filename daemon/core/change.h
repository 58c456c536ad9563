/* The generation change: one code path for a lost or replaced seat, a restarted engine and a reset
 * (proto/README.md, "Generation change").
 *
 *   REVOKE to all engines -> replies, else SIGKILL + reap -> GENERATION to those that run ->
 *   (an engine that is down gets it after its replay) -> seats cleared and set, ARM
 *
 * A cause that comes while a change runs is part of that change until ARM is sent, and another
 * change after it. Thread rule: the loop's thread. */
#ifndef EPD_CORE_CHANGE_H
#define EPD_CORE_CHANGE_H

#include "daemon/core/core_internal.h"
#include "daemon/core/group.h"

void epd_change_begin(struct epd_group *group, const struct epd_cause *cause, const char *text);
/* The device has been reaped / has had its replay / has failed for now. */
void epd_change_device_down(struct epd_group *group, unsigned device);
void epd_change_device_up(struct epd_group *group, unsigned device);
void epd_change_device_failed(struct epd_group *group);
/* Drop a group that is to be destroyed, or ephemeral and left by its last lessee. */
void epd_change_end_if_due(struct epd_group *group);
/* Every lessee knows the generation now? */
void epd_change_rearmed(struct epd_group *group);

/* Answer when ops run again: with the group, or EPD_EDEVICE (a device has failed), EPD_ESTALE (the
 * group is gone), EPD_ECANCELED (alive says no). */
void epd_change_wait_stable(struct epd_group *group, epd_alive_fn alive, epd_group_fn fn,
                            void *arg);
/* The device of the group that has failed and is tried again only later, or NULL. */
const struct epd_device *epd_change_failed_device(const struct epd_group *group);

#endif
