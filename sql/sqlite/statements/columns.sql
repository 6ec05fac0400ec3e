-- columns.sql: column lists, and a query, that several statements share. It comes first in the list
-- of sql/sqlite/meson.build because the other files name what stands here.

-- @event_columns@: a whole event, in the order in which sqlite_event_row reads it.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at,
not_before, idempotency_key;

-- @parked_columns@: what an event that is handed out inherits from its parked row; see read_parked.
failing_since, proven, attempts, key, seq, crashes > 0;

-- @taken@: the parked events that the claim :epoch of :consumer lists.
SELECT s.value FROM outbox_claim c, json_each(c.seqs) s
 WHERE c.consumer = :consumer AND c.epoch = :epoch;
