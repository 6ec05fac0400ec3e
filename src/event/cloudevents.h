/* cloudevents.h: an event as a CloudEvent 1.0. docs/webhooks.md lists the attributes. */
#ifndef EVENT_CLOUDEVENTS_H
#define EVENT_CLOUDEVENTS_H

#include "base/buf.h"
#include "base/json.h"
#include "event/event.h"

#define CLOUDEVENTS_NAME_MAX 20 /* length of an extension attribute's name */

/* The headers of an event that are sent: extension attributes, and the W3C trace headers. (1) Names
 * are lower-case letters and digits, and unique. (2) Values are as in the event's headers,
 * escaped. */
struct cloudevents_headers {
    struct {
        char name[CLOUDEVENTS_NAME_MAX + 1];
        struct json value;
    } list[EVENT_HEADERS_COUNT];
    size_t n;
};

/* cloudevents_headers collects the headers in one pass; of duplicates the last one applies. Fails
 * with ERR_INVALID if they are too many. *ret borrows from the event. */
int cloudevents_headers(const struct event *ev, struct cloudevents_headers *ret, struct error *err);

/* cloudevents_binary appends the attributes as header lines, "ce-id: ...", each ending with a NUL.
 * All bytes but printable ASCII are percent-encoded, as the HTTP binding demands, so no value can
 * end its line. */
void cloudevents_binary(struct buf *b, const struct event *ev, struct str source,
                        const struct cloudevents_headers *more);

/* cloudevents_structured appends the whole event as one JSON object, with the payload unchanged. */
void cloudevents_structured(struct buf *b, const struct event *ev, struct str source,
                            const struct cloudevents_headers *more);

/* A cloudevents_fn receives an attribute, whose strings are borrowed for the call. */
typedef void cloudevents_fn(void *ctx, struct str name, struct str value);

/* cloudevents_each passes all attributes unencoded to fn, for bindings whose headers hold any text,
 * as brokers' headers do. Errors: ERR_NOMEM. */
int cloudevents_each(const struct event *ev, struct str source,
                     const struct cloudevents_headers *more, cloudevents_fn *fn, void *ctx,
                     struct error *err);

/* cloudevents_trace appends the W3C headers "traceparent: ..." and "tracestate: ...", each ending
 * with a NUL, if the event has them and they are well-formed. */
void cloudevents_trace(struct buf *b, const struct cloudevents_headers *more);

#endif
