/* Text for people: aligned tables, sizes, durations. */
#ifndef EPDCTL_OUTPUT_H
#define EPDCTL_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

#define TABLE_COLUMNS_MAX 12u

struct table;
/* header: column titles, NULL-terminated. NULL: out of memory (rows are then ignored). */
struct table *table_create(const char *const *header);
/* One cell a column, printf-like, in order; a row is complete after the last. */
__attribute__((format(printf, 2, 3))) void table_cell(struct table *table, const char *fmt, ...);
/* Print to stdout and free. */
void table_print(struct table *table);

const char *format_bytes(uint64_t bytes, char *buf, size_t len); /* "1.5 MiB" */
const char *format_duration(uint64_t ms, char *buf, size_t len); /* "3 s", "2 h 5 min" */
const char *dtype_name(uint32_t dtype);                          /* "bf16"; unknown: "?" */
const char *layout_name(uint32_t layout);                        /* "expert" */
const char *mode_name(uint32_t mode);                            /* "ll" */

#endif
