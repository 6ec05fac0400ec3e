-- consumers.sql: registering, changing, listing and removing consumers, the settings they had, and
-- their backlog and health, at a bounded cost.

-- is_registered: whether a consumer of this name exists.
SELECT 1 FROM outbox_consumer WHERE name = :consumer;

-- lock_consumer: locks the consumer's row until the end of the transaction.
SELECT 1 FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- registered: the settings that a worker's request is compared with.
SELECT events, predicate, ordering, lanes, retry FROM outbox_consumer
 WHERE name = :consumer FOR UPDATE;

-- put_consumer: creates the consumer. Its epochs continue after those of a removed consumer of this
-- name: a worker that outlived the removal must not mistake a new claim for its own.
INSERT INTO outbox_consumer (name, events, predicate, ordering, lanes, retry, created_at, start,
                             epoch)
VALUES (:consumer, :events, :predicate, :ordering, :lanes, :retry, :now, :start,
        coalesce((SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'epoch'), 0));

-- keep_epoch: records the epoch after which put_consumer continues.
INSERT INTO outbox_meta (name, value)
SELECT 'epoch', epoch FROM outbox_consumer WHERE name = :consumer
    ON CONFLICT (name) DO UPDATE
   SET value = greatest(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER));

-- unfinished: whether any event is claimed, parked or unclaimed. A reserved lane has no events.
SELECT EXISTS (SELECT 1 FROM outbox_claim
                WHERE consumer = :consumer AND (parked OR from_seq < to_seq))
    OR EXISTS (SELECT 1 FROM outbox_parked WHERE consumer = :consumer)
    OR EXISTS (SELECT 1 FROM outbox_lane WHERE consumer = :consumer AND position < :head)
    OR (SELECT count(*) FROM outbox_lane WHERE consumer = :consumer)
       < (SELECT lanes FROM outbox_consumer WHERE name = :consumer);

-- furthest_position: a consumer set to start beyond the head stays there.
SELECT max(position) FROM outbox_lane WHERE consumer = :consumer;

-- set_shape: valid only if `unfinished` finds no event.
UPDATE outbox_consumer SET ordering = :ordering, lanes = :lanes WHERE name = :consumer;

-- set_filter: the settings that may change at any time.
UPDATE outbox_consumer SET events = :events, predicate = :predicate, retry = :retry
 WHERE name = :consumer;

-- set_paused: resuming also deletes the reason for the pause.
UPDATE outbox_consumer
   SET paused = :paused,
       report = CASE WHEN :paused OR report NOT LIKE 'paused%' THEN report END
 WHERE name = :consumer;

-- set_report: a sink that is down for a new reason has still been down since the first one. The
-- time comes first: MariaDB sets columns one after the other.
UPDATE outbox_consumer
   SET report_at = CASE WHEN report LIKE 'sink is down%' AND :report LIKE 'sink is down%'
                        THEN report_at ELSE :now END,
       report = :report
 WHERE name = :consumer AND NOT report <=> :report;

-- count_letters: dead letters that a removal would lose.
SELECT count(*) FROM outbox_dead WHERE consumer = :consumer;

-- count_parked: parked events that a removal would lose.
SELECT count(*) FROM outbox_parked WHERE consumer = :consumer;

-- count_live_claims: workers that are delivering right now.
SELECT count(*) FROM outbox_claim
 WHERE consumer = :consumer AND locked_until > :now AND (parked OR from_seq < to_seq);

-- remove_{lane,claim,parked,dead,ended,former_filter,receipt,mark,passed,setting}: each deletes one
-- kind of row that belongs to a consumer.
DELETE FROM outbox_{} WHERE consumer = :consumer;

-- remove_consumer: runs last, after all rows that belong to the consumer are deleted.
DELETE FROM outbox_consumer WHERE name = :consumer;

-- put_first_setting: the settings a consumer was created with, recorded when they are replaced.
INSERT INTO outbox_setting (consumer, generation, events, predicate, ordering, lanes, since)
SELECT name, 1, events, predicate, ordering, lanes, created_at FROM outbox_consumer
 WHERE name = :consumer
   AND NOT EXISTS (SELECT 1 FROM outbox_setting WHERE consumer = :consumer);

-- put_setting: the highest generation is the one in force.
INSERT INTO outbox_setting (consumer, generation, events, predicate, ordering, lanes, since,
                            by_whom)
VALUES (:consumer, :generation, :events, :predicate, :ordering, :lanes, :now, :by_whom);

-- drop_setting: restored settings get a new generation.
DELETE FROM outbox_setting WHERE consumer = :consumer AND generation = :generation;

-- drop_old_settings: keeps the history of a consumer bounded.
DELETE FROM outbox_setting WHERE consumer = :consumer AND generation <= :generation;

-- list_settings: newest first.
SELECT generation, events, predicate, ordering, lanes, since, by_whom FROM outbox_setting
 WHERE consumer = :consumer ORDER BY generation DESC;

-- last_former: filters are numbered in the order in which they were replaced.
SELECT max(n) FROM outbox_former_filter WHERE consumer = :consumer;

-- moved_since_former: whether a filter has judged any event since the last one was recorded.
SELECT EXISTS (SELECT 1 FROM outbox_lane l JOIN outbox_consumer c ON c.name = l.consumer
                WHERE l.consumer = :consumer
                  AND NOT EXISTS (SELECT 1 FROM outbox_former_filter f
                                   WHERE f.consumer = :consumer AND f.n = :n AND f.lane = l.lane
                                     AND f.lanes = c.lanes AND f.position = l.position));

-- put_former: records the present filter under the next number, with the position of each lane.
INSERT INTO outbox_former_filter (consumer, n, lane, lanes, position, low, high, epoch, events,
                                  predicate)
SELECT c.name, :n + 1, l.lane, c.lanes, l.position,
       (SELECT min(position) FROM outbox_lane WHERE consumer = :consumer),
       (SELECT max(position) FROM outbox_lane WHERE consumer = :consumer),
       c.epoch, c.events, c.predicate
  FROM outbox_consumer c JOIN outbox_lane l ON l.consumer = c.name
 WHERE c.name = :consumer;

-- former_of_claim: the filter a claim was made with, if it has been replaced since.
SELECT events, predicate FROM outbox_former_filter
 WHERE consumer = :consumer AND epoch >= :epoch ORDER BY n, lane LIMIT 1;

-- taken_over_events: the events of a fresh claim; range_events may be in use at the same time.
SELECT @event_columns@ FROM @events@
 WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq LIMIT :max;

-- put_ended: records the end of an event that the former filter would misreport.
INSERT IGNORE INTO outbox_ended (seq, consumer, state) VALUES (:seq, :consumer, :state);

-- count_consumers: how much room list_consumers needs.
SELECT count(*) FROM outbox_consumer;

-- list_consumers: the named consumer, or all if name is NULL.
SELECT name, events, predicate, ordering, lanes, retry, paused, created_at, delivered, report,
       report_at
  FROM outbox_consumer
 WHERE :name IS NULL OR name = :name
 ORDER BY name;

-- floors: the events that each consumer (or the named one) still needs: its position, the events of
-- fresh claims, and parked events unless a dead letter carries a copy. A consumer that has lost the
-- row of a lane may need every event.
SELECT c.name, c.paused,
       (SELECT CASE WHEN count(*) < c.lanes THEN 0 ELSE min(l.position) END FROM outbox_lane l
         WHERE l.consumer = c.name),
       (SELECT min(k.from_seq) FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0),
       (SELECT p.seq - 1 FROM outbox_parked p
         WHERE p.consumer = c.name
           AND NOT EXISTS (SELECT 1 FROM outbox_dead d
                            WHERE d.consumer = p.consumer AND d.seq = p.seq)
         ORDER BY p.seq LIMIT 1)
  FROM outbox_consumer c
 WHERE :name IS NULL OR c.name = :name
 ORDER BY c.name;

-- count_dead: dead letters that are not being retried.
SELECT count(*) FROM outbox_dead WHERE consumer = :consumer AND retrying = 0;

-- next_retry: the time when the first parked event falls due.
SELECT min(due_at) FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL;

-- live_owner: the worker that is delivering: the owner of the newest live claim.
SELECT owner FROM outbox_claim
 WHERE consumer = :consumer AND locked_until > :now ORDER BY epoch DESC LIMIT 1;

-- last_failure: the most recent failure among the first `max` parked events.
SELECT error, failed_at
  FROM (SELECT error, failed_at FROM outbox_parked
         WHERE consumer = :consumer ORDER BY seq LIMIT :max) some
 WHERE failed_at IS NOT NULL ORDER BY failed_at DESC LIMIT 1;

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

-- next_claim: walks the fresh claims one by one, with other statements in between.
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

-- parked_events: the first parked events. A trimmed event here is a retried dead letter, which
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

-- probe_dead: dead letters that are not being retried, counted up to a bound.
SELECT count(*)
  FROM (SELECT 1 FROM outbox_dead WHERE consumer = :consumer AND retrying = 0 LIMIT :max) some;
