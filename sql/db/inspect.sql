-- inspect.sql: the state of an event for a consumer, the content of the outbox, and its problems.

-- @event_columns@: a whole event, in the order of enum event_column.
@seq@, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant,
e.created_at, e.not_before, e.idempotency_key;

-- @recorded@: events with a recorded state: parked, dead, ended, or in a claim.
SELECT p.seq FROM outbox_parked p
 WHERE (:consumer IS NULL OR p.consumer = :consumer)
   AND CASE :state WHEN 'unprocessed' THEN p.attempts = 0 AND p.failing_since IS NULL
                                           OR p.due_at <= :now
                   WHEN 'in-flight' THEN p.claim IS NOT NULL
                   WHEN 'pending' THEN p.attempts = 0 AND p.failing_since IS NULL
                   WHEN 'failed' THEN p.attempts > 0 OR p.failing_since IS NOT NULL
                   ELSE 0 END
UNION ALL
SELECT d.seq FROM outbox_dead d
 WHERE (:consumer IS NULL OR d.consumer = :consumer) AND :state = 'expired' AND d.retrying = 0
UNION ALL
SELECT x.seq FROM outbox_ended x
 WHERE (:consumer IS NULL OR x.consumer = :consumer) AND :state = x.state
UNION ALL
SELECT r.seq FROM outbox_claim k JOIN @numbered@ r
    ON r.seq > k.from_seq AND r.seq <= k.to_seq
 WHERE (:consumer IS NULL OR k.consumer = :consumer) AND k.parked = 0
   AND CASE WHEN k.locked_until > :now THEN :state = 'in-flight'
            ELSE :state IN ('pending', 'unprocessed') END;

-- event_by_seq: the event with this number.
SELECT @event_columns@ FROM @events@ WHERE seq = :seq;

-- events_{forwards,backwards}: the events with low < seq <= high, oldest or newest first. Two
-- statements, so that the index is walked in that direction and nothing is sorted.
SELECT @event_columns@ FROM @events@
 WHERE seq > :low AND seq <= :high ORDER BY seq{, DESC} LIMIT :max;

-- exceptional_{forwards,backwards}: those of them with a recorded state; consumer NULL: of any.
SELECT @event_columns@ FROM @exceptional@ ORDER BY @seq@{, DESC} LIMIT :max;

-- consumer_start: events up to here predate the consumer.
SELECT start FROM outbox_consumer WHERE name = :consumer;

-- former_filters: events were judged by the filter that was in force when they were handed out.
SELECT n, lane, lanes, position, events, predicate FROM outbox_former_filter
 WHERE consumer = :consumer ORDER BY n, lane;

-- has_receipts: spares a query per event where there are none.
SELECT EXISTS (SELECT 1 FROM outbox_receipt WHERE consumer = :consumer);

-- count_ended: spares a query per event where there are none.
SELECT count(*) FROM outbox_ended WHERE consumer = :consumer;

-- count_claims: spares a query per event when there are no claims.
SELECT count(*) FROM outbox_claim;

-- exception_of: the parked row or the dead letter of an event. Most events have neither.
SELECT p.attempts, p.due_at,
       EXISTS (SELECT 1 FROM outbox_claim k
                WHERE k.consumer = :consumer AND k.epoch = p.claim AND k.locked_until > :now),
       p.error, 0, p.failing_since IS NOT NULL
  FROM outbox_parked p
 WHERE p.consumer = :consumer AND p.seq = :seq
UNION ALL
SELECT attempts, NULL, 0, error, 1, 0
  FROM outbox_dead
 WHERE consumer = :consumer AND seq = :seq AND retrying = 0;

-- receipt_of: the id guards against a number that was assigned twice.
SELECT at, sink_id FROM outbox_receipt
 WHERE consumer = :consumer AND seq = :seq AND event_id = :event_id;

-- ended_state: the recorded end of an individual event; see put_ended.
SELECT state FROM outbox_ended WHERE seq = :seq AND consumer = :consumer;

-- first_event: the lowest seq there is.
SELECT min(seq) FROM @numbered@;

-- last_event: the highest seq there is.
SELECT max(seq) FROM @numbered@;

-- tail_created_at: the creation time of the oldest event.
SELECT e.created_at FROM @events@ ORDER BY seq LIMIT 1;

-- count_events: exact, and slow where there are many.
SELECT count(*) FROM @numbered@;

-- count_all_dead: dead letters of all consumers that are not being retried.
SELECT count(*) FROM outbox_dead WHERE retrying = 0;

-- passed_at: when the last consumer passed the oldest event; -1: unknown for some consumer.
SELECT CASE WHEN count(at) = count(*) THEN max(at) ELSE -1 END
  FROM (SELECT CASE WHEN c.start >= :tail THEN 0
                    ELSE (SELECT min(p.at) FROM outbox_passed p
                           WHERE p.consumer = c.name AND p.seq >= :tail) END AS at
          FROM outbox_consumer c) passed;

-- list_marks (stream text): high-water marks of one stream, or of all if stream is NULL; the
-- highest of each stream comes first.
SELECT stream, consumer, hi, lo, at FROM outbox_mark
 WHERE :stream IS NULL OR stream = :stream
 ORDER BY stream, hi DESC, lo DESC, consumer;

-- claim_over: the state of an event that a fresh claim spans: `live`, which is the higher number,
-- or `expired`; NULL if no claim spans it.
SELECT max(CASE WHEN locked_until > :now THEN :live ELSE :expired END) FROM outbox_claim
 WHERE consumer = :consumer AND parked = 0 AND (lane = :lane OR lane < 0)
   AND from_seq < :seq AND to_seq >= :seq;

-- lost_places: consumers that have lost the row of a lane, and with it their position.
SELECT name FROM outbox_consumer c
 WHERE lanes > (SELECT count(*) FROM outbox_lane l
                 WHERE l.consumer = c.name AND l.lane < c.lanes)
 ORDER BY name;

-- lost_parked: parked rows whose event was deleted, but not by trim.
SELECT p.consumer, count(*), min(p.seq)
  FROM (SELECT consumer, seq FROM outbox_parked LIMIT :max) p
  LEFT JOIN @event_of_p@
 WHERE e.id IS NULL
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.consumer = p.consumer AND d.seq = p.seq)
 GROUP BY p.consumer ORDER BY p.consumer;

-- vanished_claims: claims that expired long ago, and that no relay has taken over.
SELECT consumer, count(*), min(locked_until), min(owner) FROM outbox_claim
 WHERE locked_until <= :before GROUP BY consumer ORDER BY consumer;
