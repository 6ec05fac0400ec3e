-- columns.sql: fragments of the shared statements, in SQLite's dialect.

-- @events@: events with their seq.
outbox_event e;

-- @numbered@: what has a seq.
outbox_event;

-- @event_of_p@: the event of a row p that has a seq.
outbox_event e ON e.seq = p.seq;

-- @event_columns@: a whole event, in the order of enum event_column.
e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant,
e.created_at, e.not_before, e.idempotency_key;

-- @chunk_columns@: an event that is handed out.
@event_columns@;

-- @letter_columns@: the same of a dead letter.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at,
not_before, idempotency_key;

-- @payload_bytes@: the size of a payload.
length(CAST(e.payload AS BLOB));

-- @by_key@: left to itself, SQLite would go through all that is parked, for each key.
INDEXED BY outbox_parked_key;

-- @taken@: the parked events that the claim :epoch of :consumer lists. No index finds them by their
-- epoch.
SELECT s.value FROM outbox_claim c, json_each(c.seqs) s
 WHERE c.consumer = :consumer AND c.epoch = :epoch;

-- @and_taken@: only those.
 AND seq IN (@taken@);

-- @claimed_parked@: claims and the parked events they have. With a CROSS JOIN, SQLite begins with
-- the claims, and not with everything that is parked.
outbox_claim c CROSS JOIN json_each(c.seqs) s
CROSS JOIN outbox_parked x ON x.consumer = c.consumer AND x.seq = s.value AND x.claim = c.epoch;
