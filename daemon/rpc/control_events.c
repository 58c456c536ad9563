/* WatchEvents. */
#include "daemon/core/events.h"

#include <stdlib.h>

#include "daemon/base/util.h"
#include "daemon/rpc/control_wire.h"

#define EVENT_BYTES 1024u /* an event is less */

struct epd_control_stream {
    struct epd_control *control;
    struct epd_rpc_call *call; /* referenced */
    struct epd_events_sub *sub;
    struct epd_control_stream *next;
};

static void stream_free(struct epd_control_stream *s)
{
    epd_events_unsubscribe(epd_core_events(s->control->options.core), s->sub);
    epd_rpc_call_on_cancel(s->call, NULL, NULL);
    epd_rpc_call_unref(s->call);
    free(s);
}

static void on_cancel(void *ctx)
{
    struct epd_control_stream *s = ctx;
    struct epd_control_stream **at = &s->control->streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    stream_free(s);
}

static void send_event(struct epd_rpc_call *call, const struct epd_event *event)
{
    Epd__V1__Event e = EPD__V1__EVENT__INIT;
    uint8_t bytes[EVENT_BYTES];
    e.sequence = event->sequence;
    e.time_ms = event->time_ms;
    /* Only read while packing. */
    e.kind = (char *)(uintptr_t)event->kind;
    e.object = (char *)(uintptr_t)event->object;
    e.text = (char *)(uintptr_t)event->text;
    epd_assert(protobuf_c_message_get_packed_size(&e.base) <= sizeof(bytes));
    const size_t len = protobuf_c_message_pack(&e.base, bytes);
    /* Too slow a reader is cut off by the server; its cancellation ends the stream. */
    (void)epd_rpc_call_send(call, bytes, len);
}

static void on_event(void *arg, const struct epd_event *event)
{
    struct epd_control_stream *s = arg;
    send_event(s->call, event);
}

void epd_control_watch_events(struct epd_rpc_call *call, const uint8_t *msg, size_t len, void *ctx)
{
    struct epd_control *control = ctx;
    struct epd_events *events = epd_core_events(control->options.core);
    Epd__V1__WatchEventsRequest *r =
        epd_wire_parse(call, &epd__v1__watch_events_request__descriptor, msg, len);
    if (r == NULL)
        return;
    uint64_t after = r->after != 0 ? r->after : epd_events_last(events);
    epd_wire_free(r);
    struct epd_control_stream *s = calloc(1, sizeof(*s));
    epd_assert(s != NULL);
    *s = (struct epd_control_stream){.control = control, .call = call, .next = control->streams};
    control->streams = s;
    epd_rpc_call_ref(call);
    for (const struct epd_event *e; (e = epd_events_after(events, after)) != NULL;) {
        after = e->sequence;
        send_event(call, e);
    }
    s->sub = epd_events_subscribe(events, on_event, s);
    epd_rpc_call_on_cancel(call, on_cancel, s);
}

void epd_control_end_streams(struct epd_control *control)
{
    while (control->streams != NULL) {
        struct epd_control_stream *s = control->streams;
        control->streams = s->next;
        epd_rpc_call_finish(s->call, EPD_EDRAINING, "the daemon stops");
        stream_free(s);
    }
}
