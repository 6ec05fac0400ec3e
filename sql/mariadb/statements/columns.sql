-- columns.sql: column lists and joins that several statements share. It comes first in the list of
-- sql/mariadb/meson.build because the other files name what stands here.

-- @events@: events with their seq. Both tables are read by their primary keys.
outbox_order o STRAIGHT_JOIN outbox_event e ON e.nr = o.nr;

-- @event_columns@: a whole event, in the order in which mdb_event_row reads it.
o.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant,
e.created_at, e.not_before, e.idempotency_key;

-- @letter_columns@: the same of a dead letter.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at,
not_before, idempotency_key;

-- @parked_columns@: what an event that is handed out inherits from its parked row; see read_parked.
failing_since, proven, attempts, key_hash, seq, crashes > 0;
