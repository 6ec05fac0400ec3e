-- backlog.sql: what waits for a consumer and how it is doing, at a bounded cost. PostgreSQL:
-- backlog.sql, waiting.sql.

-- lane_positions (consumer text): how far each lane has been handed out.
SELECT lane, position FROM outbox_lane WHERE consumer = :consumer;

-- @counted_columns@: the payload is read only where a predicate needs it.
seq, type, created_at, aggregate_type, aggregate_id, CASE WHEN :payload THEN payload END;

-- waiting_events (position int, max int, payload int): what lies after the lowest position.
SELECT @counted_columns@ FROM outbox_event WHERE seq > :position ORDER BY seq LIMIT :max;

-- claimed_events (from_seq int, to_seq int, payload int): what a fresh claim holds, among events of
-- other lanes.
SELECT @counted_columns@ FROM outbox_event
 WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq;

-- next_claim (consumer text, epoch int, now int): walks the fresh claims one by one, so that each
-- can be counted by statements of its own.
SELECT epoch, lane, from_seq, to_seq, locked_until > :now FROM outbox_claim
 WHERE consumer = :consumer AND epoch > :epoch AND parked = 0 ORDER BY epoch LIMIT 1;

-- count_parked_in_flight (consumer text, now int): parked events that a live claim holds.
SELECT count(*)
  FROM outbox_claim c, json_each(c.seqs) s
  JOIN outbox_parked p ON p.consumer = c.consumer AND p.seq = s.value AND p.claim = c.epoch
 WHERE c.consumer = :consumer AND c.parked AND c.locked_until > :now;

-- consumer_health (consumer text): what a gauge shows of the consumer itself.
SELECT events, paused, lanes, report, report_at FROM outbox_consumer WHERE name = :consumer;

-- probe_parked (consumer text, now int, max int): parked events that no live claim holds, counted
-- up to a bound.
SELECT count(*)
  FROM (SELECT 1 FROM outbox_parked p
         WHERE p.consumer = :consumer
           AND NOT EXISTS (SELECT 1 FROM outbox_claim k
                            WHERE k.consumer = :consumer AND k.epoch = p.claim
                              AND k.locked_until > :now)
         LIMIT :max);

-- probe_dead (consumer text, max int): dead letters that were not sent back, counted up to a bound.
SELECT count(*)
  FROM (SELECT 1 FROM outbox_dead WHERE consumer = :consumer AND retrying = 0 LIMIT :max);
