-- listing.sql: consumers as operators see them.

-- count_consumers (): how much room list_consumers needs.
SELECT count(*) FROM outbox_consumer;

-- list_consumers (name text): the one named, or all of them if name is NULL.
SELECT name, events, predicate, ordering, lanes, retry, paused, created_at, delivered, report,
       report_at
  FROM outbox_consumer
 WHERE :name IS NULL OR name = :name
 ORDER BY name;

-- floors (name text): what each consumer still needs, or the one named, all at one moment: its
-- position, the events of fresh claims until they are settled, and parked events until they are
-- over, unless a dead letter carries a copy. One that has lost the row of a lane may need every
-- event.
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

-- count_dead (consumer text): dead letters that were not sent back.
SELECT count(*) FROM outbox_dead WHERE consumer = :consumer AND retrying = 0;

-- next_retry (consumer text): when the first parked event falls due.
SELECT min(due_at) FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL;

-- live_owner (consumer text, now int): who is delivering; the newest claim speaks for all.
SELECT owner FROM outbox_claim
 WHERE consumer = :consumer AND locked_until > :now ORDER BY epoch DESC LIMIT 1;

-- last_failure (consumer text, max int): why the event that failed last did, of the first so many.
SELECT error, failed_at
  FROM (SELECT error, failed_at FROM outbox_parked
         WHERE consumer = :consumer ORDER BY seq LIMIT :max) some
 WHERE failed_at IS NOT NULL ORDER BY failed_at DESC LIMIT 1;
