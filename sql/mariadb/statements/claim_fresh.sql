-- claim_fresh.sql: handing out the events after a lane's position.

-- lane_found (consumer text, lane int): events up to here have been handed out; and whether
-- anything is parked. Where nothing is, a turn asks no further.
SELECT position, EXISTS (SELECT 1 FROM outbox_parked WHERE consumer = :consumer)
  FROM outbox_lane WHERE consumer = :consumer AND lane = :lane;

-- @chunk_columns_of_e@: what follows the seq. A payload of more than :most bytes is left out, and
-- read by itself if its event is wanted: so the size of an answer has a bound.
e.id, e.type, e.aggregate_type, e.aggregate_id, e.version,
IF(OCTET_LENGTH(e.payload) <= :most, e.payload, NULL), e.headers, e.tenant, e.created_at,
e.not_before, e.idempotency_key;

-- @chunk_columns@: the columns of an event that is handed out.
o.seq, @chunk_columns_of_e@;

-- fresh_events (position int, max int, most int): seq is commit order, so nothing can appear later
-- before what was read.
SELECT @chunk_columns@ FROM @events@ WHERE o.seq > :position ORDER BY o.seq LIMIT :max;

-- places (position int, max int): where the events after a position are.
SELECT seq, nr FROM outbox_order WHERE seq > :position ORDER BY seq LIMIT :max;

-- events_between (first int, last int, most int): events as they lie in the table, in the columns
-- of fresh_events, but with nr for seq.
SELECT e.nr, @chunk_columns_of_e@ FROM outbox_event e
 WHERE e.nr BETWEEN :first AND :last ORDER BY e.nr;

-- range_events (from_seq int, to_seq int, max int, most int): the events of a fresh claim, among
-- those of other lanes.
SELECT @chunk_columns@ FROM @events@
 WHERE o.seq > :from_seq AND o.seq <= :to_seq ORDER BY o.seq LIMIT :max;

-- payload_of (seq int): a payload that was left out.
SELECT e.payload FROM @events@ WHERE o.seq = :seq;

-- parked_keys (consumer text, max int): the keys of which something is parked, so that fresh events
-- can wait behind it. The index has them in order.
SELECT key_hash FROM outbox_parked FORCE INDEX (by_key)
 WHERE consumer = :consumer AND key_hash <> 0 LIMIT :max;

-- key_parked (consumer text, key int): a fresh event waits for the parked events of its key.
SELECT 1 FROM outbox_parked WHERE consumer = :consumer AND key_hash = :key LIMIT 1;

-- move_position (consumer text, lane int, position int): records how far events are handed out.
UPDATE outbox_lane SET position = :position WHERE consumer = :consumer AND lane = :lane;

-- move_others (consumer text, position int): no claim is of all lanes.
NONE;
