-- find_* list events, by the names that other outboxes use, with a row for each event and consumer,
-- in order of seq. As in the view delivery, events that a predicate does not match are skipped.
-- They start from records about single events and from positions, so millions of kept events do not
-- slow them down.
--
--     max_events  how many rows at most
--     target      of this consumer only; NULL: of all
--     after_seq   only events past it, to continue a listing
--     look        how many numbers to search, if few events match; a notice reports how far the
--                 search got (see _found)

-- What a worker would get: pending events, including those of an expired claim, and failed events
-- that are due again.
CREATE OR REPLACE FUNCTION @schema@.find_unprocessed(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0,
    look bigint DEFAULT 200000)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, due_at timestamptz, error text,
               created_at timestamptz)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
    SELECT u.*
    FROM (SELECT d.consumer, e.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id,
                 e.payload, d.attempts, d.due_at, d.error, e.created_at
          FROM @schema@._found('unprocessed', $1, $2, $3, $4) d
          JOIN @schema@.event e ON e.seq = d.seq
          UNION ALL -- a dead letter that was sent back after its event was trimmed
          SELECT d.consumer, d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.payload,
                 p.attempts, p.due_at, p.error, d.created_at
          FROM @schema@.dead d
          JOIN @schema@.parked p ON p.consumer = d.consumer AND p.seq = d.seq
          WHERE d.retrying AND d.seq > $3 AND ($2 IS NULL OR d.consumer = $2)
            AND (p.attempts = 0 AND p.failing_since IS NULL OR p.due_at <= @schema@._clock())
            AND NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = d.seq)
            AND NOT EXISTS (SELECT 1 FROM @schema@.claim k
                            WHERE k.consumer = p.consumer AND k.epoch = p.claim
                              AND k.locked_until > @schema@._clock())) u
    ORDER BY u.seq, u.consumer
    LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_unprocessed(int, text, bigint, bigint)
    IS 'what a worker would get: pending, due again, or with an expired claim';

-- The events in live claims.
CREATE OR REPLACE FUNCTION @schema@.find_processing(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, worker text, epoch bigint,
               locked_until timestamptz, created_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT k.consumer, e.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           e.attempts, k.owner, k.epoch, k.locked_until, e.created_at
    FROM @schema@.claim k
    CROSS JOIN LATERAL @schema@._claimed(k.consumer, k.epoch) e
    WHERE k.locked_until > @schema@._clock() AND e.seq > $3 AND ($2 IS NULL OR k.consumer = $2)
      -- A claim is a range of events. A predicate excludes some of them.
      AND CASE WHEN EXISTS (SELECT 1 FROM @schema@.consumer c
                            WHERE c.name = k.consumer AND c.predicate <> ''
                            UNION ALL
                            SELECT 1 FROM @schema@.former_filter f
                            WHERE f.consumer = k.consumer AND f.predicate <> '')
               THEN NOT EXISTS (SELECT 1
                                FROM (SELECT z.state FROM @schema@.delivery z
                                      WHERE z.consumer = k.consumer AND z.seq = e.seq
                                      OFFSET 0) d
                                WHERE d.state = 'skipped')
               ELSE true END
    ORDER BY e.seq, k.consumer
    LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_processing(int, text, bigint) IS 'events in live claims';

-- What failed and will be tried again at due_at; NULL: after the event before it.
CREATE OR REPLACE FUNCTION @schema@.find_failed(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, due_at timestamptz, error text,
               created_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT p.consumer, p.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           p.attempts, p.due_at, p.error, e.created_at
    FROM @schema@.parked p
    CROSS JOIN LATERAL @include parked_event(p.consumer, p)@ e
    WHERE (p.attempts > 0 OR p.failing_since IS NOT NULL)
      AND p.seq > $3 AND ($2 IS NULL OR p.consumer = $2)
      AND NOT EXISTS (SELECT 1 FROM @schema@.claim k
                      WHERE k.consumer = p.consumer AND k.epoch = p.claim
                        AND k.locked_until > @schema@._clock())
    ORDER BY p.seq, p.consumer
    LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_failed(int, text, bigint)
    IS 'what failed and will be tried again';

-- Returns dead letters that were not sent back.
CREATE OR REPLACE FUNCTION @schema@.find_abandoned(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, error text, dead_at timestamptz,
               created_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT d.consumer, d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.payload,
           d.attempts, d.error, d.dead_at, d.created_at
    FROM @schema@.dead d
    WHERE NOT d.retrying AND d.seq > $3 AND ($2 IS NULL OR d.consumer = $2)
    ORDER BY d.seq, d.consumer
    LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_abandoned(int, text, bigint)
    IS 'dead letters that were not sent back';

-- Returns delivered events. Where SQL cannot evaluate a predicate, a receipt decides.
CREATE OR REPLACE FUNCTION @schema@.find_published(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0,
    look bigint DEFAULT 200000)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, created_at timestamptz)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
    SELECT d.consumer, e.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           e.created_at
    FROM @schema@._found('published', $1, $2, $3, $4) d
    JOIN @schema@.event e ON e.seq = d.seq
    ORDER BY e.seq, d.consumer
$outbox$;
COMMENT ON FUNCTION @schema@.find_published(int, text, bigint, bigint) IS 'delivered events';
