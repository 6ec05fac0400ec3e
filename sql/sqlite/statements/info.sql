-- info.sql: the outbox as a whole, for operators.

-- tail_created_at (): how old the oldest event is.
SELECT created_at FROM outbox_event ORDER BY seq LIMIT 1;

-- count_events (): exact, and slow where there are many.
SELECT count(*) FROM outbox_event;

-- count_all_dead (): dead letters of all consumers that were not sent back.
SELECT count(*) FROM outbox_dead WHERE retrying = 0;

-- passed_at (tail int): since when every consumer has been done with the oldest event. A single
-- consumer for which that is not known makes it unknown.
SELECT CASE WHEN count(at) = count(*) THEN max(at) ELSE -1 END
  FROM (SELECT CASE WHEN start >= :tail THEN 0
                    ELSE (SELECT min(at) FROM outbox_passed p
                           WHERE p.consumer = c.name AND p.seq >= :tail) END AS at
          FROM outbox_consumer c);

-- list_marks (stream text): high-water marks of one stream, or of all if stream is NULL; the
-- furthest of each stream comes first.
SELECT stream, consumer, hi, lo, at FROM outbox_mark
 WHERE :stream IS NULL OR stream = :stream
 ORDER BY stream, hi DESC, lo DESC, consumer;
