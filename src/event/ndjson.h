/* ndjson.h: an event as one line of JSON, out and in. */
#ifndef EVENT_NDJSON_H
#define EVENT_NDJSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "event/event.h"

/* ndjson_write appends one object and a line feed, keys in this order, all always there, absent
 * ones null:
 *     id, seq, type, aggregate_type, aggregate_id, version, payload, headers, created_at, consumer,
 *     attempt
 * payload is embedded as it was emitted, only raw line breaks become spaces; headers is {} when
 * there are none; created_at is RFC 3339 in UTC. This line is a public format: keys may be
 * appended, never changed. */
void ndjson_write(struct buf *b, const struct event *ev, struct str consumer, int attempt);

/* ndjson_read fills *ret from one line: keys type, aggregate_type, aggregate_id, version, payload,
 * headers, idempotency_key, tenant, delay (a duration string): others are an error that names the
 * nearest valid one, and so is a wrong type of value. Strings that need unescaping live in `a`;
 * payload and headers are slices of the line. `now_ms` turns delay into not_before. ERR_INVALID
 * without the line's number (the caller knows it). Does not call event_check. */
int ndjson_read(struct str line, int64_t now_ms, struct arena *a, struct new_event *ret,
                struct error *err);

#endif
