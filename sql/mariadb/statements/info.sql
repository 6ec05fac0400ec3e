-- info.sql: the outbox as a whole, for operators.

-- schema_version (): what `outbox init` made.
SELECT CAST(value AS SIGNED) FROM outbox_meta WHERE name = 'schema_version';

-- head (): the highest seq ever given; its event may be gone.
SELECT next - 1 FROM outbox_sequencer WHERE one = 1;

-- first_event (): the lowest seq there is.
SELECT min(seq) FROM outbox_order;

-- last_event (): the highest seq there is.
SELECT max(seq) FROM outbox_order;

-- tail_created_at (): how old the oldest event is.
SELECT e.created_at FROM @events@ ORDER BY o.seq LIMIT 1;

-- count_events (): exact, and slow where there are many.
SELECT count(*) FROM outbox_order;

-- count_all_dead (): dead letters of all consumers that were not sent back.
SELECT count(*) FROM outbox_dead WHERE retrying = 0;

-- passed_at (tail int): since when every consumer has been done with the oldest event. A single
-- consumer for which that is not known makes it unknown.
SELECT IF(count(at) = count(*), max(at), -1)
  FROM (SELECT IF(c.start >= :tail, 0, (SELECT min(p.at) FROM outbox_passed p
                                         WHERE p.consumer = c.name AND p.seq >= :tail)) AS at
          FROM outbox_consumer c) passed;

-- list_marks (stream text): high-water marks of one stream, or of all if stream is NULL; the
-- furthest of each stream comes first.
SELECT stream, consumer, hi, lo, at FROM outbox_mark
 WHERE :stream IS NULL OR stream = :stream
 ORDER BY stream, hi DESC, lo DESC, consumer;
