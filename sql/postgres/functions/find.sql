-- find_* list events, by the names that other outboxes use, with a row for each event and consumer,
-- in order of seq. As in the view delivery, events that a predicate does not match are skipped.
-- Millions of kept events do not slow them down.
--
--     max_events  how many rows at most
--     target      only of this consumer; NULL: of all
--     after_seq   only events past it, to continue a listing
--     look        how many numbers to search, if few events match; a notice reports how far the
--                 search got (see _found)

-- What a worker would get: pending events, including those of an expired claim, and failed ones
-- that are due again.
CREATE OR REPLACE FUNCTION @schema@.find_unprocessed(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0,
    look bigint DEFAULT 200000)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, due_at timestamptz, error text,
               created_at timestamptz) LANGUAGE sql STABLE
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
    ORDER BY u.seq, u.consumer LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_unprocessed(int, text, bigint, bigint) IS 'what a worker gets';

-- The events in live claims.
CREATE OR REPLACE FUNCTION @schema@.find_processing(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, worker text, epoch bigint,
               locked_until timestamptz, created_at timestamptz) LANGUAGE sql STABLE AS $outbox$
    SELECT k.consumer, e.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           e.attempts, k.owner, k.epoch, k.locked_until, e.created_at
    FROM @schema@.claim k CROSS JOIN LATERAL @schema@._claimed(k.consumer, k.epoch) e
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
    ORDER BY e.seq, k.consumer LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_processing(int, text, bigint) IS 'events in live claims';

-- Failed events, which will be retried at due_at; NULL: after the event before it.
CREATE OR REPLACE FUNCTION @schema@.find_failed(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, due_at timestamptz, error text,
               created_at timestamptz) LANGUAGE sql STABLE AS $outbox$
    SELECT p.consumer, p.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           p.attempts, p.due_at, p.error, e.created_at
    FROM @schema@.parked p CROSS JOIN LATERAL @include parked_event(p.consumer, p)@ e
    WHERE (p.attempts > 0 OR p.failing_since IS NOT NULL)
      AND p.seq > $3 AND ($2 IS NULL OR p.consumer = $2)
      AND NOT EXISTS (SELECT 1 FROM @schema@.claim k
                      WHERE k.consumer = p.consumer AND k.epoch = p.claim
                        AND k.locked_until > @schema@._clock())
    ORDER BY p.seq, p.consumer LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_failed(int, text, bigint) IS 'what will be tried again';

-- Returns dead letters that were not sent back.
CREATE OR REPLACE FUNCTION @schema@.find_abandoned(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, attempts int, error text, dead_at timestamptz,
               created_at timestamptz) LANGUAGE sql STABLE AS $outbox$
    SELECT d.consumer, d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.payload,
           d.attempts, d.error, d.dead_at, d.created_at
    FROM @schema@.dead d WHERE NOT d.retrying AND d.seq > $3 AND ($2 IS NULL OR d.consumer = $2)
    ORDER BY d.seq, d.consumer LIMIT $1
$outbox$;
COMMENT ON FUNCTION @schema@.find_abandoned(int, text, bigint) IS 'dead letters not sent back';

-- Returns delivered events. Where SQL cannot evaluate a predicate, a receipt decides.
CREATE OR REPLACE FUNCTION @schema@.find_published(
    max_events int DEFAULT 100, target text DEFAULT NULL, after_seq bigint DEFAULT 0,
    look bigint DEFAULT 200000)
RETURNS TABLE (consumer text, seq bigint, id uuid, type text, aggregate_type text,
               aggregate_id text, payload json, created_at timestamptz) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
    SELECT d.consumer, e.seq, e.id::uuid, e.type, e.aggregate_type, e.aggregate_id, e.payload,
           e.created_at
    FROM @schema@._found('published', $1, $2, $3, $4) d JOIN @schema@.event e ON e.seq = d.seq
    ORDER BY e.seq, d.consumer
$outbox$;
COMMENT ON FUNCTION @schema@.find_published(int, text, bigint, bigint) IS 'delivered events';

-- The rows of view delivery for a few events and consumer `target` (NULL: all), with receipts. Each
-- event is looked up by index; a plan for many events would read whole tables.
CREATE OR REPLACE FUNCTION @schema@._states(seqs bigint[], target text)
RETURNS TABLE (seq bigint, consumer text, state text, attempts int, due_at timestamptz, error text,
               predicate text, received_at timestamptz, sink_id text) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $outbox$
    SELECT d.seq, d.consumer, d.state, d.attempts, d.due_at, d.error, d.predicate, r.at, r.sink_id
    FROM @schema@.delivery d
    LEFT JOIN @schema@.receipt r
           ON r.consumer = d.consumer AND r.seq = d.seq AND r.event_id = d.event_id
    WHERE d.seq = ANY (_states.seqs) AND (_states.target IS NULL OR d.consumer = _states.target)
    ORDER BY d.seq
$outbox$;

-- The seq of the event with an id, or NULL. An index on id would slow down every emit. A UUIDv7
-- begins with its creation time, so ids roughly grow with seq: a binary search finds the
-- neighbourhood, which is scanned. Another id may be anywhere: then the newest `look` events are
-- searched (NULL: all).
CREATE OR REPLACE FUNCTION @schema@._seq_of(id uuid, look bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET jit = off AS $outbox$
DECLARE
    low bigint;    -- if ids are in order, those before low are smaller,
    high bigint;   -- and those from high on are not
    middle bigint;
    at record;
    found bigint;
    around bigint;
BEGIN
    low := (SELECT e.seq FROM @schema@.event e ORDER BY e.seq LIMIT 1);
    high := (SELECT e.seq FROM @schema@.event e ORDER BY e.seq DESC LIMIT 1);
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT e.seq, e.id INTO at FROM @schema@.event e
        WHERE e.seq >= middle ORDER BY e.seq LIMIT 1;
        IF at.id < _seq_of.id THEN
            low := at.seq + 1;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    FOREACH around IN ARRAY ARRAY[1000, 100000] LOOP
        SELECT e.seq INTO found FROM @schema@.event e
        WHERE e.seq BETWEEN low - around AND low + around AND e.id = _seq_of.id;
        IF found IS NOT NULL THEN RETURN found; END IF;
    END LOOP;
    IF look IS NULL THEN
        RETURN (SELECT e.seq FROM @schema@.event e WHERE e.id = _seq_of.id LIMIT 1);
    END IF;
    -- The LIMIT keeps the condition on id out of the inner query, which ends after `look` events.
    RETURN (SELECT n.seq
            FROM (SELECT e.seq, e.id FROM @schema@.event e ORDER BY e.seq DESC LIMIT look) n
            WHERE n.id = _seq_of.id LIMIT 1);
END $outbox$;

-- The seqs of events that may be in state `wanted` for consumer `whose` (NULL: any) because of a
-- record about them; _states decides. The list is complete for failed, expired, dropped and
-- in-flight; for pending and unprocessed (pending, or failed and due again) up to _low. For other
-- states it lists the exceptions to what positions and filters determine.
CREATE OR REPLACE FUNCTION @schema@._exceptional(wanted text, whose text)
RETURNS TABLE (seq bigint) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
    SELECT p.seq FROM @schema@.parked p
    WHERE (whose IS NULL OR p.consumer = whose)
      AND CASE wanted WHEN 'unprocessed' THEN p.attempts = 0 AND p.failing_since IS NULL
                                              OR p.due_at <= @schema@._clock()
                      WHEN 'before-start' THEN true
                      WHEN 'in-flight' THEN p.claim IS NOT NULL
                      WHEN 'pending' THEN p.attempts = 0 AND p.failing_since IS NULL
                      WHEN 'failed' THEN p.attempts > 0 OR p.failing_since IS NOT NULL
                      ELSE false END
    UNION ALL
    SELECT d.seq FROM @schema@.dead d
    WHERE (whose IS NULL OR d.consumer = whose)
      AND (wanted = 'expired' AND NOT d.retrying OR wanted = 'before-start')
    UNION ALL
    SELECT x.seq FROM @schema@.ended x
    WHERE (whose IS NULL OR x.consumer = whose) AND wanted IN (x.state, 'before-start')
    UNION ALL
    -- A claim of a lane is a range: events that its consumer does not select are left out, unless a
    -- former filter may have selected them, or a worker recorded how they ended.
    SELECT e.seq
    FROM @schema@.claim k JOIN @schema@.consumer c ON c.name = k.consumer
    CROSS JOIN LATERAL @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq,
                                               c.tenant) e
    WHERE (whose IS NULL OR k.consumer = whose) AND k.lane >= 0
      AND CASE WHEN k.locked_until > @schema@._clock() THEN wanted = 'in-flight'
               ELSE wanted IN ('pending', 'unprocessed') END
      AND (c.type_like IS NULL OR e.type LIKE ANY (c.type_like)
           OR EXISTS (SELECT 1 FROM @schema@.former_filter b WHERE b.consumer = c.name)
           OR EXISTS (SELECT 1 FROM @schema@.ended x WHERE x.seq = e.seq))
    UNION ALL
    SELECT e.seq
    FROM (SELECT DISTINCT pg_snapshot_xip(s) AS xid
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l,
               unnest(ARRAY[l.seen, l.target]) s
          WHERE wanted IN ('pending', 'unprocessed') AND (whose IS NULL OR c.name = whose)) late
    CROSS JOIN LATERAL (SELECT i.seq FROM @schema@.event i
                        WHERE i.xid = late.xid ORDER BY i.seq OFFSET 0) e -- by the index
$outbox$;

-- Lists at most max_events events past after_seq, of a consumer or (NULL) all. wanted is
-- `unprocessed` (what a worker would get) or `published` (delivered). If few of many events match,
-- the scan ends after about `look` numbers, and a notice reports the last; see _look_end.
CREATE OR REPLACE FUNCTION @schema@._found(
    wanted text, max_events int, target text, after_seq bigint, look bigint)
RETURNS TABLE (consumer text, seq bigint, attempts int, due_at timestamptz, error text)
LANGUAGE plpgsql STABLE ROWS 100
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
#variable_conflict use_column
DECLARE
    until bigint := @schema@._look_end(wanted, max_events, target, after_seq, look);
    n bigint;
BEGIN
    -- OFFSET 0 prevents PostgreSQL from evaluating the view for more events than are returned.
    RETURN QUERY
    SELECT d.consumer, d.seq, d.attempts, d.due_at, d.error
    FROM @schema@._scopes(wanted, target, after_seq) s
    CROSS JOIN LATERAL (
        (SELECT x.*
         FROM (SELECT i.seq
               FROM @schema@._candidates(s.name, s.tenant, s.type_like, s.judged,
                                         s.low, least(s.high, until)) i
               ORDER BY i.seq OFFSET 0) y
         CROSS JOIN LATERAL (SELECT * FROM @schema@.delivery z
                             WHERE z.consumer = s.name AND z.seq = y.seq OFFSET 0) x
         WHERE CASE wanted
                   WHEN 'unprocessed' THEN x.state = 'pending'
                        OR x.state = 'failed' AND x.due_at <= @schema@._clock()
                   ELSE x.state = 'delivered'
                        OR x.state = 'unknown'
                           AND EXISTS (SELECT FROM @schema@.receipt r
                                       WHERE r.consumer = x.consumer AND r.seq = x.seq
                                         AND r.event_id = x.event_id)
               END
         ORDER BY y.seq LIMIT max_events)
        UNION -- events that lanes are past: late, parked, or in an expired claim
        (SELECT x.*
         FROM (SELECT DISTINCT i.seq
               FROM @schema@._exceptional(wanted, s.name) i
               WHERE wanted = 'unprocessed' AND i.seq > after_seq
                 AND i.seq <= coalesce(until, i.seq)) y
         CROSS JOIN LATERAL (SELECT * FROM @schema@.delivery z
                             WHERE z.consumer = s.name AND z.seq = y.seq OFFSET 0) x
         WHERE x.state = 'pending' OR x.state = 'failed' AND x.due_at <= @schema@._clock()
         ORDER BY y.seq LIMIT max_events)) d
    ORDER BY d.seq, d.consumer LIMIT max_events;

    GET DIAGNOSTICS n = ROW_COUNT;
    IF n < max_events AND until IS NOT NULL THEN
        RAISE NOTICE 'searched only up to sequence number %, not all events', until
            USING HINT = format('pass after_seq => %s to continue, or look => NULL to search '
                                'all events', until);
    END IF;
END $outbox$;

-- The last number that _found may scan; NULL: unbounded, as without look or max_events. From the
-- first number that may concern a consumer on, these are `look` numbers, divided among the
-- consumers; fewer if many events have a matching type, because determining the state of an event
-- takes as long as scanning 20 numbers. Listed events are not wasted, so both bounds grow by
-- max_events.
CREATE OR REPLACE FUNCTION @schema@._look_end(
    wanted text, max_events int, target text, after_seq bigint, look bigint)
RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
    WITH s AS MATERIALIZED (
        SELECT * FROM @schema@._scopes(wanted, target, after_seq)),
    -- share: the numbers that each consumer with events to scan may use
    r AS MATERIALIZED (
        SELECT min(f.seq) AS first,
               least(greatest(look, 0), 1000000000000000) / greatest(count(*), 1) AS share
        FROM s
        CROSS JOIN LATERAL (SELECT i.seq FROM @schema@.event i
                            WHERE i.seq > s.low AND i.seq <= s.high ORDER BY i.seq LIMIT 1) f),
    -- until: the bound by numbers, or a lower one where a consumer has many candidates
    b AS MATERIALIZED (
        SELECT least(r.first - 1 + r.share + max_events, min(t.seq)) AS until
        FROM r
        CROSS JOIN s
        LEFT JOIN LATERAL (SELECT i.seq
                           FROM @schema@._candidates(s.name, s.tenant, s.type_like, s.judged, s.low,
                                    least(s.high, r.first - 1 + r.share + max_events)) i
                           ORDER BY i.seq OFFSET r.share / 20 + max_events LIMIT 1) t ON true
        GROUP BY r.first, r.share)
    SELECT b.until FROM b
    WHERE look IS NOT NULL AND max_events IS NOT NULL
      AND EXISTS (SELECT FROM s, @schema@.event i WHERE i.seq > b.until AND i.seq <= s.high)
$outbox$;

-- Returns for each consumer the range (low < seq <= high) that can hold unprocessed or published
-- events, apart from those that _exceptional finds. judged: the consumer's present patterns alone
-- do not determine which events it was given.
CREATE OR REPLACE FUNCTION @schema@._scopes(wanted text, target text, after_seq bigint)
RETURNS TABLE (name text, tenant text, type_like text[], judged boolean, low bigint, high bigint)
LANGUAGE sql STABLE ROWS 10 SET jit = off AS $outbox$
    SELECT c.name, c.tenant, c.type_like, false,
           greatest(@schema@._low(c.name, c.lanes), after_seq), 9223372036854775807
    FROM @schema@.consumer c WHERE wanted = 'unprocessed' AND (target IS NULL OR c.name = target)
    UNION ALL
    SELECT c.name, c.tenant, c.type_like, true,
           -- Events up to start_floor precede the start, if no transaction was running then.
           greatest(CASE WHEN NOT EXISTS (SELECT pg_snapshot_xip(c.start_seen))
                         THEN c.start_floor END, after_seq),
           -- No lane has handed out an event past this seq, if that is known.
           coalesce((SELECT CASE WHEN bool_and(h.high IS NOT NULL) THEN max(h.high) END
                     FROM (SELECT CASE WHEN l.target IS NULL AND l.window_end IS NOT NULL
                                            THEN greatest(l.floor, l.window_end)
                                       WHEN l.seen::text = '1:1:' THEN greatest(l.floor, l.pos)
                                  END AS high
                           FROM @schema@._lanes(c.name, c.lanes) l
                           WHERE l.lane >= 0) h), 9223372036854775807)
    FROM @schema@.consumer c WHERE wanted = 'published' AND (target IS NULL OR c.name = target)
$outbox$;

-- The events of a scope that match the consumer's patterns. judged: also those that a former filter
-- may have selected, or whose end is recorded. It is inlined: a caller's LIMIT bounds the scan.
CREATE OR REPLACE FUNCTION @schema@._candidates(
    consumer text, of_tenant text, patterns text[], judged boolean, low bigint, high bigint)
RETURNS TABLE (seq bigint) LANGUAGE sql STABLE AS $outbox$
    -- Every name is schema-qualified.
    SELECT e.seq FROM @schema@.event e
    WHERE e.seq OPERATOR(pg_catalog.>) low AND e.seq OPERATOR(pg_catalog.<=) high
      AND (of_tenant OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) of_tenant)
      AND (patterns IS NULL OR e.type OPERATOR(pg_catalog.~~) ANY (patterns)
           OR judged
              AND (EXISTS (SELECT 1 FROM @schema@.former_filter f
                           WHERE f.consumer OPERATOR(pg_catalog.=) _candidates.consumer)
                   OR EXISTS (SELECT 1 FROM @schema@.ended x
                              WHERE x.seq OPERATOR(pg_catalog.=) e.seq
                                AND x.consumer OPERATOR(pg_catalog.=) _candidates.consumer)))
$outbox$;
