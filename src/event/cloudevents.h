/* cloudevents.h: an event as a CloudEvent 1.0 over HTTP. docs/webhooks.md lists the attributes. */
#ifndef EVENT_CLOUDEVENTS_H
#define EVENT_CLOUDEVENTS_H

#include "base/buf.h"
#include "event/event.h"

/* cloudevents_binary appends the attributes as header lines, "ce-id: ...", each ended with a NUL. Whatever is not a plain
 * printable character is percent-encoded, as the HTTP binding has it: no value can end its line. */
void cloudevents_binary(struct buf *b, const struct event *ev, struct str source);

/* cloudevents_structured appends the whole event as one JSON object, the payload in it byte for byte. */
void cloudevents_structured(struct buf *b, const struct event *ev, struct str source);

/* cloudevents_trace appends the W3C headers "traceparent: ..." and "tracestate: ..." of the event, where it has them and
 * they are well formed, each ended with a NUL. */
void cloudevents_trace(struct buf *b, const struct event *ev);

#endif
