#define EPD_LOG_COMPONENT "state"
#include "daemon/core/fsm.h"

#include <stddef.h>

#include "daemon/base/log.h"
#include "daemon/base/util.h"

static const struct epd_fsm_row *find(const struct epd_fsm *fsm, unsigned from, unsigned event)
{
    for (unsigned i = 0; i < fsm->n_rows; i++)
        if (fsm->rows[i].from == from && fsm->rows[i].event == event)
            return &fsm->rows[i];
    return NULL;
}

bool epd_fsm_allows(const struct epd_fsm *fsm, unsigned from, unsigned event)
{
    return find(fsm, from, event) != NULL;
}

unsigned epd_fsm_step(const struct epd_fsm *fsm, unsigned from, unsigned event, const char *object)
{
    const struct epd_fsm_row *row = find(fsm, from, event);
    if (row == NULL)
        log_error("%s %s: no edge from %s on %s", fsm->name, object, fsm->state_names[from],
                  fsm->event_names[event]);
    epd_assert(row != NULL);
    fsm->taken[row - fsm->rows]++;
    log_debug("%s %s: %s -> %s on %s", fsm->name, object, fsm->state_names[row->from],
              fsm->state_names[row->to], fsm->event_names[event]);
    return row->to;
}
