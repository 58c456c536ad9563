/* What happened, for people and WatchEvents: a ring of the last EPD_EVENTS_KEPT events and a list
 * of subscribers. Thread rule: the loop's thread. */
#ifndef EPD_CORE_EVENTS_H
#define EPD_CORE_EVENTS_H

#include <stdint.h>

#define EPD_EVENTS_KEPT 1024u

struct epd_event {
    uint64_t sequence; /* from 1 */
    uint64_t time_ms;  /* Unix time */
    const char *kind;  /* static: session | group | lease | device | epoch | daemon */
    char object[72];
    char text[200];
};

struct epd_events;
struct epd_events_sub;
/* Called for each new event, inside epd_events_add: must not add events or unsubscribe. */
typedef void (*epd_events_fn)(void *arg, const struct epd_event *event);

struct epd_events *epd_events_create(void);
void epd_events_destroy(struct epd_events *events); /* subscriptions must be gone */

/* Keep and announce an event; the text is truncated to fit. */
__attribute__((format(printf, 4, 5))) void epd_events_add(struct epd_events *events,
                                                          const char *kind, const char *object,
                                                          const char *fmt, ...);
/* The oldest kept event with sequence > after, or NULL. Valid until the next add. */
const struct epd_event *epd_events_after(const struct epd_events *events, uint64_t after);
/* Sequence of the newest event, 0: none yet. */
uint64_t epd_events_last(const struct epd_events *events);

struct epd_events_sub *epd_events_subscribe(struct epd_events *events, epd_events_fn fn, void *arg);
void epd_events_unsubscribe(struct epd_events *events, struct epd_events_sub *sub);

#endif
