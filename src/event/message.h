/* message.h: an event as a message of a broker: a key, a value and headers. docs/brokers.md has the
 * formats for people. */
#ifndef EVENT_MESSAGE_H
#define EVENT_MESSAGE_H

#include "base/buf.h"
#include "event/event.h"

/* How an event is put into a message. The order is that of message_formats. */
enum message_format {
    MESSAGE_PLAIN,       /* the payload; everything else in headers */
    MESSAGE_CLOUDEVENTS, /* the payload; attributes of a CloudEvent in headers: its binary mode */
    MESSAGE_STRUCTURED,  /* a CloudEvent as one JSON object */
    MESSAGE_DEBEZIUM,    /* the payload, and the id in a header: what Debezium's router emits */
    MESSAGE_JSON,        /* the line that file: writes, without its line feed */
    MESSAGE_CONTRACT,    /* the envelope of event/envelope.h */
};

/* message_formats has their names, for option_choice: plain, cloudevents, cloudevents-structured,
 * debezium, json, contract. Ends with NULL. */
extern const char *const message_formats[];

/* Our own headers, and those of the event. */
#define MESSAGE_HEADERS (16 + EVENT_HEADERS_COUNT)

/* (1) Names differ. (2) Values are UTF-8, as they were emitted: a sink encodes what its broker
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

/* message_make fills *ret, whose strings are borrowed from the event, or are in `text` until that
 * is used again. `destination` is where the message goes, for MESSAGE_CONTRACT; consumer and
 * attempt are for MESSAGE_JSON. ERR_INVALID: the event cannot be expressed, whenever it is tried;
 * else ERR_NOMEM.
 *
 * MESSAGE_PLAIN has the headers id, type, aggregate_type, aggregate_id, key, seq, version, time and
 * tenant as far as the event has them, and the event's own headers under their names, unless the
 * name is one of ours. */
int message_make(const struct message_style *s, const struct event *ev, struct str destination,
                 struct str consumer, int attempt, struct buf *text, struct message *ret,
                 struct error *err);

/* message_header_of finds a header by its name; absent if there is none. */
struct str message_header_of(const struct message *m, struct str name);

/* What a message tells about its event. (1) id is a UUID. (2) type and key are absent where the
 * format does not have them. (3) Strings are borrowed from the message, or are in `text`. */
struct message_facts {
    enum message_format format;
    struct str id, type;
    struct str key; /* order/42 */
};

/* message_read finds which event a message holds, in whatever format it was written, which it
 * recognizes by what is there. ERR_INVALID: it is no message of ours. */
int message_read(const struct message *m, struct buf *text, struct message_facts *ret,
                 struct error *err);

#endif
