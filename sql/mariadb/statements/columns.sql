-- columns.sql: fragments of the shared statements, in MariaDB's dialect.

-- @events@: events with their seq. Both tables are read by their primary keys.
outbox_order o STRAIGHT_JOIN outbox_event e ON e.nr = o.nr;

-- @numbered@: the table of events with a seq.
outbox_order;

-- @event_of_p@: the event of a row p that has a seq.
outbox_order o ON o.seq = p.seq LEFT JOIN outbox_event e ON e.nr = o.nr;

-- @chunk_columns_of_e@: the columns after the seq. A payload of more than :most bytes is left out,
-- and read separately if its event is wanted, so that the size of an answer has a bound.
e.id, e.type, e.aggregate_type, e.aggregate_id, e.version,
IF(OCTET_LENGTH(e.payload) <= :most, e.payload, NULL), e.headers, e.tenant, e.created_at,
e.not_before, e.idempotency_key;

-- @chunk_columns@: an event that is handed out.
o.seq, @chunk_columns_of_e@;

-- @payload_bytes@: the size of a payload.
OCTET_LENGTH(e.payload);

-- @by_key@: the index of the parked events of a key.
FORCE INDEX (by_key);

-- @and_taken@: parked rows name the epoch of their claim.
;

-- @claimed_parked@: claims and their parked events.
outbox_claim c JOIN outbox_parked x ON x.consumer = c.consumer AND x.claim = c.epoch;

-- @marks@: whether rows of a table are marked once :consumer has received them.
EXISTS (SELECT 1 FROM outbox_marking m WHERE m.consumer = :consumer);

-- @server_clock@: the time by the server's clock.
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;

-- @identity_value@: a database cannot be replaced beneath its connections.
NULL;

-- @seq@: the number of an event, where other tables have that column as well.
o.seq;
