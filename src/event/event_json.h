/* event_json.h: the two forms of an event as one JSON object: a line, for files, commands and
 * `outbox emit`, and the envelope of a stream entry. Both are public formats. */
#ifndef EVENT_EVENT_JSON_H
#define EVENT_EVENT_JSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "event/event.h"

/* event_line_write appends one object and a line feed, with all of these keys in this order, absent
 * ones null:
 *
 *     id, seq, type, aggregate_type, aggregate_id, version, payload, headers, created_at, consumer,
 *     attempt
 *
 * payload is embedded as it was emitted, except that raw line breaks become spaces; headers is {}
 * if the event has none; created_at is RFC 3339 in UTC. The line is a public format: keys may be
 * appended, never changed. */
void event_line_write(struct buf *b, const struct event *ev, struct str consumer, int attempt);

/* event_line_read fills in *ret from one line with the keys type, aggregate_type, aggregate_id,
 * version, payload, headers, idempotency_key, tenant, delay (a duration as a string). An unknown
 * key is an error that suggests the nearest known key; a value of the wrong type is an error too.
 * Strings that need unescaping live in `a`; payload and headers are slices of the line. now_ms
 * converts delay into not_before. Fails with ERR_INVALID; the error does not name the line, whose
 * number the caller knows. The caller must still run event_check on the event. */
int event_line_read(struct str line, int64_t now_ms, struct arena *a, struct new_event *ret,
                    struct error *err);

/* event_envelope_write appends one JSON object without a line feed, with exactly these keys in this
 * order, absent ones null:
 *
 *     event_id, topic, aggregate_kind, aggregate_id, entity_version, payload, stream_id,
 *     committed_at
 *
 * stream_id is the name of the stream, because an entry's id is known only after XADD. The payload
 * is embedded byte for byte. If it is an object without a member "_telemetry", the headers, which
 * are the producer's telemetry, become its last member with this name. This is a public format,
 * fixed by the contract: changing it breaks readers. */
void event_envelope_write(struct buf *b, const struct event *ev, struct str stream);

#endif
