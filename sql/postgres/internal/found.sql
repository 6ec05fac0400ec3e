-- _found lists events in order of seq, max_events at most: what a worker would get (wanted:
-- unprocessed; pending, or failed and due again) or what was delivered (published). target: for
-- this consumer only, NULL: for all; after_seq: only events behind it.
--
-- Where few events match among many, it ends after `look` numbers in vain, and a notice says how
-- far it came; see _look_end.
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
    -- The fences (OFFSET 0) keep the view from being asked about more events than there are to
    -- show.
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
        UNION -- what its lanes are past, but was late, waits, or is in a claim that ran out
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
        RAISE NOTICE 'looked only at the sequence numbers up to %, not at all events', until
            USING HINT = format('use after_seq => %s to go on, or look => NULL to look at '
                                'everything', until);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._found(text, int, text, bigint, bigint) IS
    'events that wait for a worker, or were delivered';

-- _look_end returns the last number that _found may look at; NULL: it may look at all that there
-- are. From the first number on that may matter to a consumer these are `look` numbers, divided
-- among the consumers, or fewer, where many events have the right type: to tell a state takes as
-- long as to look at 20 numbers. What is listed is not looked at in vain, so max_events more of
-- both. If look or max_events is NULL, there is no bound.
CREATE OR REPLACE FUNCTION @schema@._look_end(
    wanted text, max_events int, target text, after_seq bigint, look bigint)
RETURNS bigint
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $outbox$
    WITH s AS MATERIALIZED (
        SELECT * FROM @schema@._scopes(wanted, target, after_seq)),
    -- share: of each consumer that has something to look at
    r AS MATERIALIZED (
        SELECT min(f.seq) AS first,
               least(greatest(look, 0), 1000000000000000) / greatest(count(*), 1) AS share
        FROM s
        CROSS JOIN LATERAL (SELECT i.seq FROM @schema@.event i
                            WHERE i.seq > s.low AND i.seq <= s.high
                            ORDER BY i.seq LIMIT 1) f),
    -- until: by numbers, or by states, where a consumer has so many candidates before
    b AS MATERIALIZED (
        SELECT least(r.first - 1 + r.share + max_events, min(t.seq)) AS until
        FROM r
        CROSS JOIN s
        LEFT JOIN LATERAL (SELECT i.seq
                           FROM @schema@._candidates(s.name, s.tenant, s.type_like, s.judged, s.low,
                                    least(s.high, r.first - 1 + r.share + max_events)) i
                           ORDER BY i.seq OFFSET r.share / 20 + max_events LIMIT 1) t ON true
        GROUP BY r.first, r.share)
    SELECT b.until
    FROM b
    WHERE look IS NOT NULL AND max_events IS NOT NULL
      AND EXISTS (SELECT FROM s, @schema@.event i WHERE i.seq > b.until AND i.seq <= s.high)
$outbox$;
COMMENT ON FUNCTION @schema@._look_end(text, int, text, bigint, bigint) IS 'how far a look may go';

-- _scopes returns for each consumer the events (low < seq <= high) among which there can be some
-- that are unprocessed or published, apart from what _exceptional finds. judged: it depends on more
-- than its patterns of now which of them it was given.
CREATE OR REPLACE FUNCTION @schema@._scopes(wanted text, target text, after_seq bigint)
RETURNS TABLE (name text, tenant text, type_like text[], judged boolean, low bigint, high bigint)
LANGUAGE sql STABLE ROWS 10 SET jit = off AS $outbox$
    -- What its lanes are not past.
    SELECT c.name, c.tenant, c.type_like, false,
           greatest(@schema@._low(c.name, c.lanes), after_seq), 9223372036854775807
    FROM @schema@.consumer c
    WHERE wanted = 'unprocessed' AND (target IS NULL OR c.name = target)
    UNION ALL
    SELECT c.name, c.tenant, c.type_like, true,
           -- Up to its floor all came before it, if nothing was running when it started.
           greatest(CASE WHEN NOT EXISTS (SELECT pg_snapshot_xip(c.start_seen))
                         THEN c.start_floor END, after_seq),
           -- Past this none of its lanes has handed anything out, if that is known.
           coalesce((SELECT CASE WHEN bool_and(h.high IS NOT NULL) THEN max(h.high) END
                     FROM (SELECT CASE WHEN l.target IS NULL AND l.window_end IS NOT NULL
                                            THEN greatest(l.floor, l.window_end)
                                       WHEN l.seen::text = '1:1:' THEN greatest(l.floor, l.pos)
                                  END AS high
                           FROM @schema@._lanes(c.name, c.lanes) l
                           WHERE l.lane >= 0) h), 9223372036854775807)
    FROM @schema@.consumer c
    WHERE wanted = 'published' AND (target IS NULL OR c.name = target)
$outbox$;
COMMENT ON FUNCTION @schema@._scopes(text, text, bigint) IS 'where a look may find something';

-- _candidates returns the events of a scope that its consumer wants; if they are judged, those as
-- well that it may have been given under a former filter, or whose end is on record. It is inlined,
-- so that nothing is read past what a caller wants.
CREATE OR REPLACE FUNCTION @schema@._candidates(
    consumer text, of_tenant text, patterns text[], judged boolean, low bigint, high bigint)
RETURNS TABLE (seq bigint)
LANGUAGE sql STABLE AS $outbox$
    -- Every name has its schema.
    SELECT e.seq
    FROM @schema@.event e
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
COMMENT ON FUNCTION @schema@._candidates(text, text, text[], boolean, bigint, bigint) IS
    'events that a look has to ask about';
