-- trim.sql: deleting what is old and no longer needed.
--
-- Samples tell when a consumer was done with what. Those of the consumer '' are of all consumers
-- that there were. From one sample to the next neither seq nor the time goes back.

-- lock_trim (): one trims or adds a consumer at a time.
SELECT 1 FROM outbox_meta WHERE name = 'trim' FOR UPDATE;

-- passed_by_now (consumer text, now int): a sample from the future, by a clock that was wrong,
-- proves only that the consumer had come that far by now.
UPDATE outbox_passed SET at = :now WHERE consumer = :consumer AND at > :now;

-- passed_too_far (consumer text, floor int): a sample beyond the consumer's floor is no longer
-- true: its position went back.
DELETE FROM outbox_passed WHERE consumer = :consumer AND seq > :floor;

-- put_passed (consumer text, floor int, now int, every int): samples how far a consumer has come,
-- unless the last sample is recent.
INSERT INTO outbox_passed (consumer, seq, at)
SELECT :consumer, :floor, :now FROM DUAL
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT seq, at FROM outbox_passed
                                   WHERE consumer = :consumer ORDER BY seq DESC LIMIT 1) last
                    WHERE seq = :floor OR at > :now - :every);

-- passed_long_ago (consumer text, cutoff int): of the samples up to the cutoff only the last one
-- matters.
DELETE FROM outbox_passed
 WHERE consumer = :consumer
   AND seq < (SELECT max(seq) FROM outbox_passed WHERE consumer = :consumer AND at <= :cutoff);

-- passed_by_all (cutoff int): how far all consumers had come by the cutoff, and when. Samples from
-- before it are few, those from after it may be thousands.
SELECT seq, at FROM outbox_passed
 WHERE consumer = '' AND at <= :cutoff
   AND seq < coalesce((SELECT seq FROM outbox_passed WHERE consumer = '' AND at > :cutoff
                        ORDER BY seq LIMIT 1), 9223372036854775807)
 ORDER BY seq DESC LIMIT 1;

-- passed_by (consumer text, cutoff int, floor int, all_seq int, all_at int): how far the consumer
-- had come at the cutoff. Events before its start never concerned it. What all had come to counts
-- for it if it had a sample by then.
SELECT greatest(start,
                coalesce((SELECT greatest(seq, IF(:all_at >= at AND :all_seq <= :floor,
                                                  :all_seq, 0))
                            FROM outbox_passed
                           WHERE consumer = :consumer AND at <= :cutoff AND seq <= :floor
                           ORDER BY seq DESC LIMIT 1), 0))
  FROM outbox_consumer
 WHERE name = :consumer;

-- passed_events (after int, past int, max int): events that every consumer was done with, oldest
-- first.
SELECT o.seq, e.created_at FROM @events@
 WHERE o.seq > :after AND o.seq <= :past ORDER BY o.seq LIMIT :max;

-- last_old (past int, most int, cutoff int): the last of the events that every consumer was done
-- with that is old enough by its own time, for a dry run.
SELECT max(seq)
  FROM (SELECT o.seq, e.created_at FROM @events@
         WHERE o.seq <= :past ORDER BY o.seq DESC LIMIT :most) passed
 WHERE created_at < :cutoff;

-- count_kept (floor int, most int, cutoff int): tells the operator how much a slow consumer holds
-- back.
SELECT count(*)
  FROM (SELECT e.created_at FROM @events@ WHERE o.seq > :floor ORDER BY o.seq LIMIT :most) kept
 WHERE created_at < :cutoff;

-- @going@: the events that go. One whose created_at is ahead of the clock counts as old as the next
-- event whose created_at is not.
o.seq <= :last AND (e.created_at < :cutoff OR e.created_at > :now);

-- count_going (last int, cutoff int, now int): for a dry run.
SELECT count(*) FROM @events@ WHERE @going@;

-- count_going_keys (last int, cutoff int, now int): an idempotency key goes with its event.
SELECT count(*) FROM @events@ WHERE @going@ AND e.idempotency_key IS NOT NULL;

-- drop_going_keys (last int, cutoff int, now int): the key is a column of the event.
NONE;

-- count_left_over_keys (cutoff int, most int): likewise.
NONE;

-- drop_left_over_keys (cutoff int, max int): likewise.
NONE;

-- drop_going_rows (last int, cutoff int, now int): nobody needs to know any more which rows of
-- adopted tables they came from.
DELETE r FROM @events@ STRAIGHT_JOIN outbox_adopted_row r ON r.nr = e.nr WHERE @going@;

-- allow_changes (): events may be deleted from here to refuse_changes (), by this session.
SET @outbox_change_events = 'on';

-- refuse_changes (): events are insert-only again.
SET @outbox_change_events = NULL;

-- drop_going (last int, cutoff int, now int): deletes them.
DELETE e FROM @events@ WHERE @going@;

-- drop_places (last int): the places of events that are gone, also by somebody's hand.
DELETE o FROM outbox_order o LEFT JOIN outbox_event e ON e.nr = o.nr
 WHERE o.seq <= :last AND e.nr IS NULL;

-- count_old_inbox (cutoff int, most int): for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_handled WHERE at < :cutoff LIMIT :most) old;

-- drop_old_inbox (cutoff int, max int): forgets what was handled longer ago than the inbox is kept.
DELETE FROM outbox_handled WHERE at < :cutoff ORDER BY at LIMIT :max;

-- count_old_receipts (cutoff int, most int): for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_receipt WHERE at < :cutoff LIMIT :most) old;

-- drop_old_receipts (cutoff int, max int): deletes the oldest receipts from before the cutoff.
DELETE FROM outbox_receipt WHERE at < :cutoff ORDER BY at LIMIT :max;

-- drop_ended (last int): what is recorded about a single event goes with it.
DELETE x FROM outbox_ended x LEFT JOIN outbox_order o ON o.seq = x.seq
 WHERE x.seq <= :last AND o.seq IS NULL;

-- drop_former_filters (last int): so does a filter that judged only events that are gone.
DELETE FROM outbox_former_filter
 WHERE high < coalesce((SELECT min(seq) FROM outbox_order), :last + 1);
