-- _waiting returns the first max_rows events past the point up to which the consumer has had
-- everything, in order of seq. waits says whether an event waits to be claimed: its lane is not
-- past it, and the type patterns match. The payload predicate is not evaluated.
--
-- In addition (fresh = false) it returns events further back: those of transactions that committed
-- late, and those of claims of lanes. What a claim holds waits again if the claim ran out, and is
-- in flight (held) while it is live. Parked events are not among them: see _parked_summary. The
-- work is bounded whatever the backlog, except for what claims hold, which workers have in memory.
--
-- due is when an event could first have been delivered: created_at, or not_before if that is later.
CREATE OR REPLACE FUNCTION @schema@._waiting(consumer text, max_rows int)
RETURNS TABLE (seq bigint, type text, created_at timestamptz, due timestamptz, fresh boolean,
               waits boolean, held boolean)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
    WITH c AS MATERIALIZED (
        SELECT * FROM @schema@.consumer x WHERE x.name = _waiting.consumer),
    l AS MATERIALIZED (
        SELECT x.* FROM c, LATERAL @schema@._lanes(c.name, c.lanes) x WHERE x.lane >= 0),
    p AS MATERIALIZED (
        SELECT @schema@._low(c.name, c.lanes) AS low FROM c),
    -- What to look at: the next events, and those of transactions that were late to some lane.
    s AS (
        (SELECT e.seq, e.xid, e.type, e.created_at, greatest(e.created_at, e.not_before) AS due,
                e.aggregate_type, e.aggregate_id, e.tenant, true AS fresh
         FROM @schema@.event e
         WHERE e.seq > (SELECT low FROM p)
         ORDER BY e.seq LIMIT _waiting.max_rows)
        UNION ALL
        SELECT e.*
        FROM (SELECT pg_snapshot_xip(l.seen) AS xid FROM l
              UNION
              SELECT pg_snapshot_xip(l.target) FROM l) AS late,
             LATERAL (SELECT i.seq, i.xid, i.type, i.created_at,
                             greatest(i.created_at, i.not_before), i.aggregate_type,
                             i.aggregate_id, i.tenant, false
                      FROM @schema@.event i
                      WHERE i.xid = late.xid AND i.seq <= (SELECT low FROM p)
                      ORDER BY i.seq LIMIT _waiting.max_rows) AS e)
    SELECT s.seq, s.type, s.created_at, s.due, s.fresh,
           NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos, s.xid, s.seq)
           AND s.seq > @schema@._starts_after(c.start_seen, c.start_floor)
           AND (c.type_like IS NULL OR s.type LIKE ANY (c.type_like))
           AND (c.tenant = '' OR s.tenant = c.tenant),
           false
    FROM s CROSS JOIN c
    JOIN l ON l.lane = @schema@._lane_of(c.lanes, s.seq, s.aggregate_type, s.aggregate_id)
    UNION ALL -- a lane is past what it has in a claim, but one that ran out is handed out again
    SELECT e.seq, e.type, e.created_at, greatest(e.created_at, e.not_before), false,
           k.locked_until <= @schema@._clock(), k.locked_until > @schema@._clock()
    FROM @schema@.claim k, LATERAL @schema@._claimed(_waiting.consumer, k.epoch) e
    WHERE k.consumer = _waiting.consumer AND k.lane >= 0
$outbox$;
COMMENT ON FUNCTION @schema@._waiting(text, int) IS
    'what waits for somebody to claim it, looked at up to a bound, and what is in claims';
