-- _idle says whether a consumer surely has nothing to do. It takes no lock, and so writes nothing.
-- idle: there is no claim, no parked event that is due, no event the consumer has not seen, nothing
-- it could forget, and the outbox is the one it knows. If that is not so, _long_turn looks at it
-- under the lock. due and through are what _long_turn would answer. One statement sees everything
-- at one moment.
CREATE OR REPLACE FUNCTION @schema@._idle(
    c @schema@.consumer, pull_in boolean, now timestamptz,
    OUT idle boolean, OUT due timestamptz, OUT through boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    here text := @schema@._here();
BEGIN
    WITH l AS MATERIALIZED (SELECT * FROM @schema@._places(c.name, c.lanes)),
    s AS MATERIALIZED (SELECT coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0)
                              AS head),
    d AS MATERIALIZED (SELECT coalesce(max(l.due_from), '-infinity') AS since
                       FROM l WHERE l.lane = -1)
    SELECT -- Every lane is there and at home, has no open window, and knows the last seq given out.
           (SELECT count(*) = c.lanes + 1
                   AND bool_and(@schema@._at_home(l.home, here))
                   AND bool_and(l.lane < 0 OR l.leader IS NOT NULL OR
                       (l.target IS NULL
                        AND l.floor >= s.head
                        AND (l.window_end <= s.head) IS NOT FALSE
                        -- No event is new: neither by its transaction, nor by its number, nor one
                        -- of a transaction that was running when the lane last looked.
                        AND NOT EXISTS (SELECT 1 FROM @schema@.event e
                                        WHERE e.xid >= pg_snapshot_xmax(l.seen))
                        AND NOT EXISTS (SELECT 1 FROM @schema@.event e
                                        WHERE e.seq > least(l.floor, l.window_end))
                        AND NOT EXISTS (SELECT 1
                                        FROM pg_snapshot_xip(l.seen) x,
                                             LATERAL (SELECT 1 FROM @schema@.event e
                                                      WHERE e.xid = x LIMIT 1) late)))
            FROM l, s)
           AND NOT EXISTS (SELECT 1 FROM @schema@.claim k
                           WHERE k.consumer = c.name
                             AND k.epoch >= (SELECT max(l.claims_from) FROM l))
           AND NOT EXISTS (SELECT 1 FROM @schema@.parked p
                           WHERE p.consumer = c.name AND p.claim IS NULL
                             AND p.due_at >= (SELECT d.since FROM d) AND p.due_at <= now)
           -- With pull_in, whatever waits may have to be pulled in: see _claim_parked.
           AND NOT (pull_in AND EXISTS (SELECT 1 FROM @schema@.parked p
                                        WHERE p.consumer = c.name AND p.claim IS NULL
                                          AND p.due_at >= '-infinity'))
           -- A subscription that writes here is for _check_fed to refuse.
           AND NOT @include is_fed()@,
           (SELECT min(p.due_at) FROM @schema@.parked p
            WHERE p.consumer = c.name AND p.claim IS NULL
              AND p.due_at >= (SELECT d.since FROM d)),
           NOT EXISTS (SELECT 1 FROM @schema@.parked p
                       WHERE p.consumer = c.name AND p.claim IS NULL
                         AND p.due_at >= (SELECT d.since FROM d) AND NOT p.delayed)
    INTO idle, due, through;
END
$outbox$;
COMMENT ON FUNCTION @schema@._idle(@schema@.consumer, boolean, timestamptz) IS
    'whether a consumer surely has nothing to do';
