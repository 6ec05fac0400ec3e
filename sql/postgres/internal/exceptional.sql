-- _exceptional returns the seqs of events that may be in a state for the consumer `whose` (NULL:
-- for any) because something is recorded about them: that they are parked, dead, ended, in a claim,
-- or late. Some may be in another state, and the events of some dead letters are gone: ask _states.
--
-- For failed, expired, dropped and in-flight these are all there are. For pending and unprocessed
-- (pending, or failed and due again) they are all up to _low. For the others they are the
-- exceptions to what positions and filters say.
CREATE OR REPLACE FUNCTION @schema@._exceptional(wanted text, whose text)
RETURNS TABLE (seq bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
    SELECT p.seq
    FROM @schema@.parked p
    WHERE (whose IS NULL OR p.consumer = whose)
      AND CASE wanted WHEN 'unprocessed' THEN p.attempts = 0 AND p.failing_since IS NULL
                                              OR p.due_at <= @schema@._clock()
                      WHEN 'before-start' THEN true
                      WHEN 'in-flight' THEN p.claim IS NOT NULL
                      WHEN 'pending' THEN p.attempts = 0 AND p.failing_since IS NULL
                      WHEN 'failed' THEN p.attempts > 0 OR p.failing_since IS NOT NULL
                      ELSE false END
    UNION ALL
    SELECT d.seq
    FROM @schema@.dead d
    WHERE (whose IS NULL OR d.consumer = whose)
      AND (wanted = 'expired' AND NOT d.retrying OR wanted = 'before-start')
    UNION ALL
    SELECT x.seq
    FROM @schema@.ended x
    WHERE (whose IS NULL OR x.consumer = whose) AND wanted IN (x.state, 'before-start')
    UNION ALL
    -- A claim of a lane is a range: what its consumer does not ask for is no part of it, unless it
    -- asked before, or somebody said how it ended.
    SELECT e.seq
    FROM @schema@.claim k
    JOIN @schema@.consumer c ON c.name = k.consumer
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
    FROM (SELECT pg_snapshot_xip(l.seen) AS xid
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE wanted IN ('pending', 'unprocessed') AND (whose IS NULL OR c.name = whose)
          UNION
          SELECT pg_snapshot_xip(l.target)
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE wanted IN ('pending', 'unprocessed') AND (whose IS NULL OR c.name = whose)) late
    CROSS JOIN LATERAL (SELECT i.seq FROM @schema@.event i
                        WHERE i.xid = late.xid ORDER BY i.seq OFFSET 0) e -- by the index
$outbox$;
COMMENT ON FUNCTION @schema@._exceptional(text, text) IS
    'events that may be in a state because something is recorded about them';
