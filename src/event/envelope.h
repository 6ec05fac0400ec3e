/* envelope.h: the form of an event in a stream entry. */
#ifndef EVENT_ENVELOPE_H
#define EVENT_ENVELOPE_H

#include "base/buf.h"
#include "event/event.h"

/* envelope_write appends one JSON object without a line feed, with exactly these keys in this
 * order, absent ones null:
 *
 *     event_id, topic, aggregate_kind, aggregate_id, entity_version, payload, stream_id,
 *     committed_at
 *
 * stream_id is the name of the stream, because an entry's id is known only after XADD. The payload
 * is embedded byte for byte. If it is an object without a member "_telemetry", the headers, which
 * are the producer's telemetry, become its last member with this name. This is a public format,
 * fixed by the contract: changing it breaks readers. */
void envelope_write(struct buf *b, const struct event *ev, struct str stream);

/* envelope_read parses the output of envelope_write. The strings of *ret are in `text`, each
 * followed by a NUL, until `text` is reused; headers is the "_telemetry" of the payload. Any client
 * may write to a stream, so *ret has passed event_check_stored. Fails with ERR_INVALID, which names
 * the problem. */
int envelope_read(struct str envelope, struct buf *text, struct event *ret, struct error *err);

#endif
