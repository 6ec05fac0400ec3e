-- consumers.sql: registering, changing and removing consumers. PostgreSQL: register.sql,
-- remove.sql, pause.sql, report.sql.

-- is_registered (consumer text): whether there is a consumer of this name.
SELECT 1 FROM outbox_consumer WHERE name = :consumer;

-- lock_to_settle (consumer text): whether rows of a table are marked once this consumer has had
-- them, and which keys are held up.
SELECT EXISTS (SELECT 1 FROM outbox_adopted WHERE consumer = :consumer AND mark IS NOT NULL),
       parked_stamp
  FROM outbox_consumer WHERE name = :consumer;

-- lock_consumer (consumer text): the same in a transaction, which has the only lock there is.
SELECT 1 FROM outbox_consumer WHERE name = :consumer;

-- registered (consumer text): what a worker that registers has to agree with.
SELECT events, predicate, ordering, lanes, retry FROM outbox_consumer WHERE name = :consumer;

-- put_consumer (consumer text, events text, predicate text, ordering text, lanes int, retry text,
-- now int, start int): creates the consumer. Its epochs go on where those of a removed consumer of
-- this name ended: a worker that outlived the removal must not mistake a new claim for its own.
INSERT INTO outbox_consumer (name, events, predicate, ordering, lanes, retry, created_at, start,
                             epoch)
VALUES (:consumer, :events, :predicate, :ordering, :lanes, :retry, :now, :start,
        coalesce((SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'epoch'), 0));

-- keep_epoch (consumer text): what put_consumer goes on from.
INSERT INTO outbox_meta (name, value)
SELECT 'epoch', epoch FROM outbox_consumer WHERE name = :consumer
    ON CONFLICT (name) DO UPDATE
   SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER));

-- put_lane (consumer text, lane int, position int, head int): a position may lie beyond the head,
-- but the highest number that was handed out cannot; see numbers.sql.
INSERT INTO outbox_lane (consumer, lane, position, high, high_id)
SELECT :consumer, :lane, :position, min(:position, :head),
       (SELECT id FROM outbox_event WHERE seq = min(:position, :head));

-- unfinished (consumer text, head int): while any event is on its way, changing order or lanes
-- would let one overtake another. A lane that was set aside has none.
SELECT EXISTS (SELECT 1 FROM outbox_claim
                WHERE consumer = :consumer AND (parked OR from_seq < to_seq))
    OR EXISTS (SELECT 1 FROM outbox_parked WHERE consumer = :consumer)
    OR EXISTS (SELECT 1 FROM outbox_lane WHERE consumer = :consumer AND position < :head)
    OR (SELECT count(*) FROM outbox_lane WHERE consumer = :consumer)
       < (SELECT lanes FROM outbox_consumer WHERE name = :consumer);

-- furthest_position (consumer text): a consumer told to start beyond the head stays there.
SELECT max(position) FROM outbox_lane WHERE consumer = :consumer;

-- set_shape (consumer text, ordering text, lanes int): only while nothing is unfinished.
UPDATE outbox_consumer SET ordering = :ordering, lanes = :lanes WHERE name = :consumer;

-- set_filter (consumer text, events text, predicate text, retry text): what may change at any time.
UPDATE outbox_consumer SET events = :events, predicate = :predicate, retry = :retry
 WHERE name = :consumer;

-- set_paused (consumer text, paused int): the reason for a pause goes with the pause.
UPDATE outbox_consumer
   SET paused = :paused,
       report = CASE WHEN :paused OR report NOT LIKE 'paused%' THEN report END
 WHERE name = :consumer;

-- set_report (consumer text, report text, now int): a sink that is down for a new reason has still
-- been down since the first one.
UPDATE outbox_consumer
   SET report = :report,
       report_at = CASE WHEN report LIKE 'sink is down%' AND :report LIKE 'sink is down%'
                        THEN report_at ELSE :now END
 WHERE name = :consumer AND report IS NOT :report;

-- count_letters (consumer text): dead letters that a removal would lose.
SELECT count(*) FROM outbox_dead WHERE consumer = :consumer;

-- count_parked (consumer text): parked events that a removal would lose.
SELECT count(*) FROM outbox_parked WHERE consumer = :consumer;

-- count_live_claims (consumer text, now int): workers that are delivering right now.
SELECT count(*) FROM outbox_claim
 WHERE consumer = :consumer AND locked_until > :now AND (parked OR from_seq < to_seq);

-- remove_lanes (consumer text): each of these forgets one kind of row that belongs to a consumer.
DELETE FROM outbox_lane WHERE consumer = :consumer;

-- remove_claims (consumer text): see remove_lanes.
DELETE FROM outbox_claim WHERE consumer = :consumer;

-- remove_parked (consumer text): see remove_lanes.
DELETE FROM outbox_parked WHERE consumer = :consumer;

-- remove_letters (consumer text): see remove_lanes.
DELETE FROM outbox_dead WHERE consumer = :consumer;

-- remove_ended (consumer text): see remove_lanes.
DELETE FROM outbox_ended WHERE consumer = :consumer;

-- remove_former_filters (consumer text): see remove_lanes.
DELETE FROM outbox_former_filter WHERE consumer = :consumer;

-- remove_receipts (consumer text): see remove_lanes.
DELETE FROM outbox_receipt WHERE consumer = :consumer;

-- remove_marks (consumer text): see remove_lanes.
DELETE FROM outbox_mark WHERE consumer = :consumer;

-- remove_passed (consumer text): see remove_lanes.
DELETE FROM outbox_passed WHERE consumer = :consumer;

-- remove_settings (consumer text): see remove_lanes.
DELETE FROM outbox_setting WHERE consumer = :consumer;

-- remove_consumer (consumer text): comes last, after everything that belongs to it.
DELETE FROM outbox_consumer WHERE name = :consumer;
