#include "daemon/core/events.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/util.h"
#include "daemon/core/must.h"

struct epd_events_sub {
    epd_events_fn fn;
    void *arg;
    struct epd_events_sub *next;
};

struct epd_events {
    struct epd_event ring[EPD_EVENTS_KEPT]; /* sequence s is at s % EPD_EVENTS_KEPT */
    uint64_t last;
    struct epd_events_sub *subs; /* owned */
};

struct epd_events *epd_events_create(void)
{
    return epd_must_calloc(sizeof(struct epd_events));
}

void epd_events_destroy(struct epd_events *events)
{
    if (events == NULL)
        return;
    epd_assert(events->subs == NULL);
    free(events);
}

/* Cut off a UTF-8 sequence that the end of the buffer has split. */
static void trim(char *text, size_t cap)
{
    size_t n = strlen(text);
    if (n + 1 < cap)
        return;
    while (n > 0 && ((unsigned char)text[n - 1] & 0xc0) == 0x80)
        n--;
    if (n > 0 && (unsigned char)text[n - 1] >= 0xc0)
        n--;
    text[n] = '\0';
}

void epd_events_add(struct epd_events *events, const char *kind, const char *object,
                    const char *fmt, ...)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail */
    struct epd_event *e = &events->ring[++events->last % EPD_EVENTS_KEPT];
    *e = (struct epd_event){
        .sequence = events->last,
        .time_ms = (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u,
        .kind = kind,
    };
    (void)snprintf(e->object, sizeof(e->object), "%s", object);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    trim(e->object, sizeof(e->object));
    trim(e->text, sizeof(e->text));
    for (const struct epd_events_sub *s = events->subs; s != NULL; s = s->next)
        s->fn(s->arg, e);
}

const struct epd_event *epd_events_after(const struct epd_events *events, uint64_t after)
{
    if (after >= events->last)
        return NULL;
    const uint64_t oldest = events->last > EPD_EVENTS_KEPT ? events->last - EPD_EVENTS_KEPT + 1 : 1;
    const uint64_t want = after + 1 > oldest ? after + 1 : oldest;
    return &events->ring[want % EPD_EVENTS_KEPT];
}

uint64_t epd_events_last(const struct epd_events *events)
{
    return events->last;
}

struct epd_events_sub *epd_events_subscribe(struct epd_events *events, epd_events_fn fn, void *arg)
{
    struct epd_events_sub *sub = epd_must_calloc(sizeof(*sub));
    *sub = (struct epd_events_sub){.fn = fn, .arg = arg, .next = events->subs};
    events->subs = sub;
    return sub;
}

void epd_events_unsubscribe(struct epd_events *events, struct epd_events_sub *sub)
{
    struct epd_events_sub **at = &events->subs;
    while (*at != sub)
        at = &(*at)->next;
    *at = sub->next;
    free(sub);
}
