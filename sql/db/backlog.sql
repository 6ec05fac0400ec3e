-- backlog.sql: the backlog and the health of a consumer, at a bounded cost.

-- @counted_columns@: the payload is read only where a predicate needs it.
seq, e.type, e.created_at, e.aggregate_type, e.aggregate_id, e.not_before,
CASE WHEN :payload THEN e.payload END;

-- lane_positions: the position of each lane.
SELECT lane, position FROM outbox_lane WHERE consumer = :consumer;

-- waiting_events (position int, max int, payload int): the events after the lowest position.
SELECT @counted_columns@ FROM @events@ WHERE seq > :position ORDER BY seq LIMIT :max;

-- claimed_events (from_seq int, to_seq int, payload int): the events in the range of a fresh claim,
-- including those of other lanes.
SELECT @counted_columns@ FROM @events@
 WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq;

-- next_claim: walks the fresh claims one by one, so that each can be counted by separate
-- statements.
SELECT epoch, lane, from_seq, to_seq, locked_until > :now FROM outbox_claim
 WHERE consumer = :consumer AND epoch > :epoch AND parked = 0 ORDER BY epoch LIMIT 1;

-- count_parked_in_flight: parked events that a live claim holds.
SELECT count(*) FROM @claimed_parked@
 WHERE c.consumer = :consumer AND c.parked = 1 AND c.locked_until > :now;

-- consumer_health: the consumer's own row, for its gauge.
SELECT events, paused, lanes, report, report_at FROM outbox_consumer WHERE name = :consumer;

-- count_parked_rows: the number of parked events, in a claim or not, up to a bound; with the first
-- and the last event counted, and the last of all.
SELECT count(*), min(seq), max(seq),
       (SELECT max(seq) FROM outbox_parked WHERE consumer = :consumer)
  FROM (SELECT seq FROM outbox_parked WHERE consumer = :consumer ORDER BY seq LIMIT :max) some;

-- parked_events: the first parked events. A trimmed event here is a redriven dead letter, which
-- holds a copy.
SELECT coalesce(e.type, d.type), coalesce(e.created_at, d.created_at)
  FROM (SELECT seq FROM outbox_parked WHERE consumer = :consumer ORDER BY seq LIMIT :max) p
  LEFT JOIN @event_of_p@
  LEFT JOIN outbox_dead d ON d.consumer = :consumer AND d.seq = p.seq;

-- first_parked: the oldest event that does not merely wait for its not_before, among the parked
-- events that are due first and those in claims.
SELECT p.seq, p.attempts, p.due_at, p.error,
       greatest(coalesce(e.created_at, d.created_at), coalesce(e.not_before, d.not_before, 0))
  FROM (SELECT * FROM (
            SELECT seq, attempts, due_at, error, `delayed` FROM outbox_parked
             WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL
             ORDER BY due_at, seq LIMIT :max) soon
        UNION ALL
        SELECT x.seq, x.attempts, x.due_at, x.error, x.`delayed` FROM @claimed_parked@
         WHERE c.consumer = :consumer AND c.parked = 1) p
  LEFT JOIN @event_of_p@
  LEFT JOIN outbox_dead d ON d.consumer = :consumer AND d.seq = p.seq
 WHERE NOT (p.`delayed` AND p.due_at > :now)
 ORDER BY p.seq LIMIT 1;

-- probe_dead: dead letters that were not sent back, counted up to a bound.
SELECT count(*)
  FROM (SELECT 1 FROM outbox_dead WHERE consumer = :consumer AND retrying = 0 LIMIT :max) some;
