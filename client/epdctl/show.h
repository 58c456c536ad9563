/* Control-plane messages as JSON and as table rows. */
#ifndef EPDCTL_SHOW_H
#define EPDCTL_SHOW_H

#include <jansson.h>

#include "client/epdctl/output.h"
#include "proto/control.pb-c.h"

json_t *show_device_json(const Epd__V1__Device *d);
json_t *show_group_json(const Epd__V1__Group *g);
json_t *show_session_json(const Epd__V1__SessionInfo *s);
json_t *show_counters_json(Epd__V1__Counter *const *counters, size_t n);
struct table *show_device_table(void);
void show_device_row(struct table *table, const Epd__V1__Device *d);

#endif
