/* cloudevents.h: an event as a CloudEvent 1.0 over HTTP. docs/webhooks.md lists the attributes. */
#ifndef EVENT_CLOUDEVENTS_H
#define EVENT_CLOUDEVENTS_H

#include "base/buf.h"
#include "base/json.h"
#include "event/event.h"

#define CLOUDEVENTS_NAME_MAX 20 /* of an extension attribute */

/* Headers of an event that go along: extension attributes, and what W3C has for traces. (1) Names
 * are small letters and digits, each is there once. (2) Values are as they stand in the event's
 * headers, escaped. */
struct cloudevents_headers {
    struct {
        char name[CLOUDEVENTS_NAME_MAX + 1];
        struct json value;
    } list[EVENT_HEADERS_COUNT];
    size_t n;
};

/* cloudevents_headers finds them, in one pass; of a name that comes twice the last counts.
 * ERR_INVALID: there are too many. */
int cloudevents_headers(const struct event *ev, struct cloudevents_headers *ret, struct error *err);

/* cloudevents_binary appends the attributes as header lines, "ce-id: ...", each ended with a NUL.
 * Whatever is not a plain printable character is percent-encoded, as the HTTP binding has it: no
 * value can end its line. */
void cloudevents_binary(struct buf *b, const struct event *ev, struct str source,
                        const struct cloudevents_headers *more);

/* cloudevents_structured appends the whole event as one JSON object, the payload in it byte for
 * byte. */
void cloudevents_structured(struct buf *b, const struct event *ev, struct str source,
                            const struct cloudevents_headers *more);

/* cloudevents_trace appends the W3C headers "traceparent: ..." and "tracestate: ..." of the event,
 * where it has them and they are well formed, each ended with a NUL. */
void cloudevents_trace(struct buf *b, const struct cloudevents_headers *more);

#endif
