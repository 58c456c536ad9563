/* The failure of an epoch: one decision for {group, generation, epoch} (proto/README.md, "Failure
 * of an epoch"). REVOKE(epoch) to all engines, replies or SIGKILL + reap, FAIL to all. A generation
 * change that begins meanwhile makes it void. Thread rule: the loop's thread. */
#ifndef EPD_CORE_EPOCH_H
#define EPD_CORE_EPOCH_H

#include "daemon/core/core_internal.h"

/* An engine's EPOCH_FAILED report; repeated and outdated ones are ignored. */
void epd_epoch_report(struct epd_core *core, const struct epd_msg_epoch *msg);

#endif
