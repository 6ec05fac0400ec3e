/* ndjson.h: an event as one line of JSON: writer and parser. */
#ifndef EVENT_NDJSON_H
#define EVENT_NDJSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "event/event.h"

/* ndjson_write appends one object and a line feed, with all of these keys in this order, absent
 * ones null:
 *
 *     id, seq, type, aggregate_type, aggregate_id, version, payload, headers, created_at, consumer,
 *     attempt
 *
 * payload is embedded as it was emitted, except that raw line breaks become spaces; headers is {}
 * if the event has none; created_at is RFC 3339 in UTC. The line is a public format: keys may be
 * appended, never changed. */
void ndjson_write(struct buf *b, const struct event *ev, struct str consumer, int attempt);

/* ndjson_read fills in *ret from one line with the keys type, aggregate_type, aggregate_id,
 * version, payload, headers, idempotency_key, tenant, delay (a duration as a string). An unknown
 * key is an error that suggests the nearest known key; a value of the wrong type is an error too.
 * Strings that need unescaping live in `a`; payload and headers are slices of the line. now_ms
 * converts delay into not_before. Fails with ERR_INVALID; the error does not name the line, whose
 * number the caller knows. The caller must still run event_check on the event. */
int ndjson_read(struct str line, int64_t now_ms, struct arena *a, struct new_event *ret,
                struct error *err);

#endif
