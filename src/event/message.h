/* message.h: an event as a CloudEvent 1.0, whose attributes docs/webhooks.md lists, and as a broker
 * message: key, value and headers, in the formats of docs/brokers.md. */
#ifndef EVENT_MESSAGE_H
#define EVENT_MESSAGE_H

#include "base/buf.h"
#include "base/json.h"
#include "event/event.h"

/* ---- CloudEvents ---- */

#define CLOUDEVENTS_NAME_MAX 20 /* length of an extension attribute's name */

/* The headers of an event that are sent: extension attributes and W3C trace headers. (1) Names are
 * lower-case letters and digits, and unique. (2) Values are as in the event's headers, escaped. */
struct cloudevents_headers {
    struct {
        char name[CLOUDEVENTS_NAME_MAX + 1];
        struct json value;
    } list[EVENT_HEADERS_COUNT];
    size_t n;
};

/* cloudevents_headers collects the headers in one pass; of duplicates the last one applies. Fails
 * with ERR_INVALID if there are too many. *ret borrows from the event. */
int cloudevents_headers(const struct event *ev, struct cloudevents_headers *ret, struct error *err);

/* cloudevents_binary appends the attributes as header lines, "ce-id: ...", each ending with a NUL.
 * All bytes but printable ASCII are percent-encoded, so no value can end its line. */
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

/* ---- messages ---- */

/* Message formats, in the order of message_formats. */
enum message_format {
    MESSAGE_PLAIN,       /* the payload, with all other fields in headers */
    MESSAGE_CLOUDEVENTS, /* the payload, with CloudEvents attributes in headers (binary mode) */
    MESSAGE_STRUCTURED,  /* a CloudEvent as one JSON object */
    MESSAGE_DEBEZIUM,    /* the payload, with the id in a header, as by Debezium's router */
    MESSAGE_JSON,        /* the line written by file:, without its line feed */
    MESSAGE_CONTRACT,    /* the envelope of event/event_json.h */
};

/* message_formats lists the names of the formats, for option_choice: plain, cloudevents,
 * cloudevents-structured, debezium, json, contract. Ends with NULL. */
extern const char *const message_formats[];

/* Our own headers and those of the event. */
#define MESSAGE_HEADERS (16 + EVENT_HEADERS_COUNT)

/* (1) Names are unique. (2) Values are UTF-8, as emitted: the sink encodes values that its broker
 * cannot hold. */
struct message_header {
    struct str name, value;
};

struct message {
    struct str key;                 /* the aggregate's id; p == NULL: none */
    struct str value, content_type; /* content_type.p == NULL: the format has none */
    struct message_header headers[MESSAGE_HEADERS];
    size_t n;
};

struct message_style {
    enum message_format format;
    struct str source;     /* of CloudEvents; absent: /outbox */
    const char *ce_prefix; /* "ce_" Kafka, "ce-" NATS, "cloudEvents:" AMQP */
};

/* message_make fills in *ret, whose strings are borrowed from the event or live in `text` until
 * `text` is reused. `destination` is the name of the stream, topic, subject or queue, for
 * MESSAGE_CONTRACT; consumer and attempt are for MESSAGE_JSON. Fails with ERR_INVALID if the event
 * can never be expressed, otherwise with ERR_NOMEM; *ret is then undefined.
 *
 * MESSAGE_PLAIN has the headers id, type, aggregate_type, aggregate_id, key, seq, version, time and
 * tenant, if the event has them. It also has the event's own headers under their names, except for
 * the names above. */
int message_make(const struct message_style *s, const struct event *ev, struct str destination,
                 struct str consumer, int attempt, struct buf *text, struct message *ret,
                 struct error *err);

/* message_header_of returns the value of the header with this name; absent if the message has no
 * such header. */
struct str message_header_of(const struct message *m, struct str name);

#endif
