-- consumers.sql: registering, changing and removing consumers.

-- is_registered (consumer text): whether there is a consumer of this name.
SELECT 1 FROM outbox_consumer WHERE name = :consumer;

-- lock_consumer (consumer text): whoever changes what belongs to a consumer has its row, so that
-- nobody else does meanwhile.
SELECT 1 FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- lock_to_settle (consumer text): does the same, and says whether rows of a table are marked once
-- this consumer has had them, and which keys are held up.
SELECT EXISTS (SELECT 1 FROM outbox_marking m WHERE m.consumer = :consumer), parked_stamp
  FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- registered (consumer text): what a worker that registers has to agree with.
SELECT events, predicate, ordering, lanes, retry FROM outbox_consumer
 WHERE name = :consumer FOR UPDATE;

-- put_consumer (consumer text, events text, predicate text, ordering text, lanes int, retry text,
-- now int, start int): creates the consumer. Its epochs go on where those of a removed consumer of
-- this name ended: a worker that outlived the removal must not mistake a new claim for its own.
INSERT INTO outbox_consumer (name, events, predicate, ordering, lanes, retry, created_at, start,
                             epoch)
SELECT :consumer, :events, :predicate, :ordering, :lanes, :retry, :now, :start,
       coalesce((SELECT CAST(value AS SIGNED) FROM outbox_meta WHERE name = 'epoch'), 0);

-- keep_epoch (consumer text): what put_consumer goes on from.
INSERT INTO outbox_meta (name, value)
SELECT 'epoch', epoch FROM outbox_consumer WHERE name = :consumer
    ON DUPLICATE KEY UPDATE
       value = greatest(CAST(value AS SIGNED), CAST(VALUES(value) AS SIGNED));

-- put_lane (consumer text, lane int, position int): where a lane begins.
INSERT INTO outbox_lane (consumer, lane, position) VALUES (:consumer, :lane, :position);

-- unfinished (consumer text, head int): while any event is on its way, changing order or lanes
-- would let one overtake another.
SELECT EXISTS (SELECT 1 FROM outbox_claim WHERE consumer = :consumer)
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
   SET paused = :paused, report = IF(:paused OR report NOT LIKE 'paused%', report, NULL)
 WHERE name = :consumer;

-- set_report (consumer text, report text, now int): a sink that is down for a new reason has still
-- been down since the first one. The time comes first: MariaDB sets columns one after the other.
UPDATE outbox_consumer
   SET report_at = IF(report LIKE 'sink is down%' AND :report LIKE 'sink is down%',
                      report_at, :now),
       report = :report
 WHERE name = :consumer AND NOT report <=> :report;

-- count_letters (consumer text): dead letters that a removal would lose.
SELECT count(*) FROM outbox_dead WHERE consumer = :consumer;

-- count_parked (consumer text): parked events that a removal would lose.
SELECT count(*) FROM outbox_parked WHERE consumer = :consumer;

-- count_live_claims (consumer text, now int): workers that are delivering right now.
SELECT count(*) FROM outbox_claim WHERE consumer = :consumer AND locked_until > :now;

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
