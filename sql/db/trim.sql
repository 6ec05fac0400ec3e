-- trim.sql: deleting events that every consumer is done with, and old records.

-- forget_rows: rows that are not marked need no record of which event they became.
DELETE FROM outbox_adopted_row WHERE source = :source;

-- passed_by_now: a sample from the future, taken by a wrong clock, proves only the progress up to
-- now.
UPDATE outbox_passed SET at = :now WHERE consumer = :consumer AND at > :now;

-- passed_too_far: a sample beyond the floor is no longer true: the position was set back.
DELETE FROM outbox_passed WHERE consumer = :consumer AND seq > :floor;

-- passed_long_ago: of the samples up to the cutoff only the last one matters.
DELETE FROM outbox_passed
 WHERE consumer = :consumer
   AND seq < (SELECT max(seq) FROM outbox_passed WHERE consumer = :consumer AND at <= :cutoff);

-- passed_by_all: the last event that all consumers had passed by the cutoff, and when.
SELECT seq, at FROM outbox_passed
 WHERE consumer = '' AND at <= :cutoff
   AND seq < coalesce((SELECT seq FROM outbox_passed WHERE consumer = '' AND at > :cutoff
                        ORDER BY seq LIMIT 1), 9223372036854775807)
 ORDER BY seq DESC LIMIT 1;

-- passed_by: the last event that the consumer had passed at the cutoff. Events before its start
-- never concerned it. The sample of all consumers counts for it if it had a sample by then.
SELECT greatest(start,
                coalesce((SELECT greatest(seq, CASE WHEN :all_at >= at AND :all_seq <= :floor
                                      THEN :all_seq ELSE 0 END)
                            FROM outbox_passed
                           WHERE consumer = :consumer AND at <= :cutoff AND seq <= :floor
                           ORDER BY seq DESC LIMIT 1), 0))
  FROM outbox_consumer
 WHERE name = :consumer;

-- passed_events: events that every consumer was done with, oldest first.
SELECT seq, e.created_at FROM @events@
 WHERE seq > :after AND seq <= :past ORDER BY seq LIMIT :max;

-- last_old: the last event that is old enough and that every consumer was done with.
SELECT max(seq)
  FROM (SELECT seq, e.created_at FROM @events@
         WHERE seq <= :past ORDER BY seq DESC LIMIT :most) passed
 WHERE created_at < :cutoff;

-- count_kept: how many old events a slow consumer holds back.
SELECT count(*)
  FROM (SELECT e.created_at FROM @events@ WHERE seq > :floor ORDER BY seq LIMIT :most) kept
 WHERE created_at < :cutoff;

-- @going@: the events to delete. An event whose created_at is ahead of the clock counts as old as
-- the next one whose created_at is not.
@seq@ <= :last AND (e.created_at < :cutoff OR e.created_at > :now);

-- count_going: for a dry run.
SELECT count(*) FROM @events@ WHERE @going@;

-- count_old_inbox: for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_handled WHERE at < :cutoff LIMIT :most) old;

-- count_old_receipts: for a dry run.
SELECT count(*) FROM (SELECT 1 FROM outbox_receipt WHERE at < :cutoff LIMIT :most) old;

-- drop_former_filters: deletes the filters that judged only deleted events.
DELETE FROM outbox_former_filter
 WHERE high < coalesce((SELECT min(seq) FROM @numbered@), :last + 1);

-- put_passed: samples the progress of a consumer, unless the last sample is recent.
INSERT INTO outbox_passed (consumer, seq, at)
SELECT :consumer, :floor, :now FROM DUAL
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT seq, at FROM outbox_passed
                                   WHERE consumer = :consumer ORDER BY seq DESC LIMIT 1) last
                    WHERE seq = :floor OR at > :now - :every);
