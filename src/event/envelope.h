/* envelope.h: an event as an entry of a stream carries it. */
#ifndef EVENT_ENVELOPE_H
#define EVENT_ENVELOPE_H

#include "base/buf.h"
#include "event/event.h"

/* envelope_write appends one JSON object without a line feed, exactly these keys in this order,
 * absent ones null:
 *     event_id, topic, aggregate_kind, aggregate_id, entity_version, payload, stream_id,
 *     committed_at
 * stream_id is the stream's name: an entry's own number is known only once it was added. payload is
 * embedded byte for byte; the event's headers, the producer's telemetry, become its last member,
 * "_telemetry", if it is an object that has none by that name. To change this is to break readers:
 * a public format, as it stands in the contract. */
void envelope_write(struct buf *b, const struct event *ev, struct str stream);

/* envelope_read takes it apart again. The strings of *ret are in `text`, with a NUL behind each,
 * until that is used again; payload as it stands there, headers what stands in its "_telemetry".
 * Anyone may write to a stream, so what it gives has passed event_check_stored. ERR_INVALID names
 * what is wrong. */
int envelope_read(struct str envelope, struct buf *text, struct event *ret, struct error *err);

#endif
