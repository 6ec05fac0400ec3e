-- trim.sql: deleting what is old and no longer needed. PostgreSQL: trim.sql, floors.sql,
-- note_passed.sql.
--
-- Samples tell when a consumer was done with what. Those of the consumer '' are of all consumers
-- that there were. From one sample to the next neither seq nor the time goes back.

-- lock_trim (): one writes at a time.
NONE;

-- passed_by_now (consumer text, now int): a sample from the future, by a clock that was wrong,
-- proves only that the consumer had come that far by now.
UPDATE outbox_passed SET at = :now WHERE consumer = :consumer AND at > :now;

-- passed_too_far (consumer text, floor int): a sample beyond the consumer's floor is no longer
-- true: its position went back.
DELETE FROM outbox_passed WHERE consumer = :consumer AND seq > :floor;

-- put_passed (consumer text, floor int, now int, every int): samples how far a consumer has come,
-- unless the last sample is recent.
INSERT INTO outbox_passed (consumer, seq, at)
SELECT :consumer, :floor, :now
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT seq, at FROM outbox_passed
                                   WHERE consumer = :consumer ORDER BY seq DESC LIMIT 1)
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
SELECT max(start,
           coalesce((SELECT max(seq, iif(:all_at >= at AND :all_seq <= :floor, :all_seq, 0))
                       FROM outbox_passed
                      WHERE consumer = :consumer AND at <= :cutoff AND seq <= :floor
                      ORDER BY seq DESC LIMIT 1), 0))
  FROM outbox_consumer
 WHERE name = :consumer;

-- passed_events (after int, past int, max int): events that every consumer was done with, oldest
-- first.
SELECT seq, created_at FROM outbox_event
 WHERE seq > :after AND seq <= :past ORDER BY seq LIMIT :max;

-- last_old (past int, most int, cutoff int): the last of the events that every consumer was done
-- with that is old enough by its own time, for a dry run.
SELECT max(seq)
  FROM (SELECT seq, created_at FROM outbox_event WHERE seq <= :past ORDER BY seq DESC LIMIT :most)
 WHERE created_at < :cutoff;

-- count_kept (floor int, most int, cutoff int): tells the operator how much a slow consumer holds
-- back.
SELECT count(*)
  FROM (SELECT created_at FROM outbox_event WHERE seq > :floor ORDER BY seq LIMIT :most)
 WHERE created_at < :cutoff;

-- @going@: the events that go. One whose created_at is ahead of the clock counts as old as the next
-- event whose created_at is not.
seq <= :last AND (created_at < :cutoff OR created_at > :now);

-- count_going (last int, cutoff int, now int): for a dry run.
SELECT count(*) FROM outbox_event WHERE @going@;

-- drop_going_rows (last int, cutoff int, now int): nobody needs to know any more which rows of
-- adopted tables they came from.
DELETE FROM outbox_adopted_row
 WHERE EXISTS (SELECT 1 FROM outbox_adopted WHERE mark IS NOT NULL)
   AND event_id IN (SELECT id FROM outbox_event WHERE @going@);

-- allow_changes (): events may be changed from here to refuse_changes (), in this transaction.
INSERT OR IGNORE INTO outbox_meta (name, value) VALUES ('change_events', '');

-- refuse_changes (): events are insert-only again.
DELETE FROM outbox_meta WHERE name = 'change_events';

-- drop_going (last int, cutoff int, now int): deletes them.
DELETE FROM outbox_event WHERE @going@;

-- drop_places (last int): an event's number is its place.
NONE;

-- @keys_of_going@: an idempotency key goes with its event.
FROM outbox_event WHERE @going@ AND +idempotency_key IS NOT NULL;

-- count_going_keys (last int, cutoff int, now int): whether there is any key to delete.
SELECT count(*) @keys_of_going@;

-- drop_going_keys (last int, cutoff int, now int): deletes them, before their events.
DELETE FROM outbox_idempotency WHERE key IN (SELECT idempotency_key @keys_of_going@);

-- @left_over_keys@: keys of events that somebody deleted by hand. Only keys
-- older than the oldest event are considered: hardly any other can go.
FROM outbox_idempotency
 WHERE at < min(:cutoff,
                coalesce((SELECT created_at FROM outbox_event ORDER BY seq LIMIT 1), :cutoff))
   AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.id = event_id);

-- count_left_over_keys (cutoff int, most int): for a dry run.
SELECT count(*) FROM (SELECT 1 @left_over_keys@ LIMIT :most);

-- drop_left_over_keys (cutoff int, max int): deletes the oldest of them.
DELETE FROM outbox_idempotency WHERE key IN (SELECT key @left_over_keys@ ORDER BY at LIMIT :max);

-- count_old_inbox (cutoff int, most int): for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_handled WHERE at < :cutoff LIMIT :most);

-- drop_old_inbox (cutoff int, max int): forgets what was handled longer ago than the inbox is kept.
DELETE FROM outbox_handled
 WHERE (handler, key) IN (SELECT handler, key FROM outbox_handled
                           WHERE at < :cutoff ORDER BY at LIMIT :max);

-- count_old_receipts (cutoff int, most int): for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_receipt WHERE at < :cutoff LIMIT :most);

-- drop_old_receipts (cutoff int, max int): deletes the oldest receipts from before the cutoff.
DELETE FROM outbox_receipt
 WHERE (consumer, seq) IN (SELECT consumer, seq FROM outbox_receipt
                            WHERE at < :cutoff ORDER BY at LIMIT :max);

-- drop_ended (last int): what is recorded about a single event goes with it.
DELETE FROM outbox_ended
 WHERE seq <= :last
   AND NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.seq = outbox_ended.seq);

-- drop_former_filters (last int): so does a filter that judged only events that are gone.
DELETE FROM outbox_former_filter
 WHERE high < coalesce((SELECT min(seq) FROM outbox_event), :last + 1);
