-- _idle: whether a consumer surely has nothing to do, told without its lock, and so without writing: no claim of anybody, nothing
-- parked that is due, no event it has not seen, none to forget, and all as it knows it. One statement, so one moment. Whatever is
-- not so is for long_turn to look at, under the lock. due, through: as long_turn would say.
CREATE OR REPLACE FUNCTION @schema@._idle(c @schema@.consumer, pull_in boolean, now timestamptz, OUT idle boolean, OUT due timestamptz,
                                         OUT through boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    here text := @schema@._here();
BEGIN
    WITH l AS MATERIALIZED (SELECT * FROM @schema@._lanes(c.name, c.lanes)),
    s AS MATERIALIZED (SELECT coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) AS head)
    SELECT (SELECT count(*) = c.lanes + 1 AND bool_and(@schema@._at_home(l.home, here)) AND bool_and(l.lane < 0 OR
                (l.target IS NULL AND l.floor >= s.head AND (l.window_end <= s.head) IS NOT FALSE
                 AND NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.xid >= pg_snapshot_xmax(l.seen))
                 AND NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq > least(l.floor, l.window_end))
                 AND NOT EXISTS (SELECT 1 FROM pg_snapshot_xip(l.seen) x, LATERAL (
                                 SELECT 1 FROM @schema@.event e WHERE e.xid = x LIMIT 1) late)))
            FROM l, s)
       AND NOT EXISTS (SELECT 1 FROM @schema@.claim k WHERE k.consumer = c.name AND k.epoch >= (SELECT max(l.claims_from) FROM l))
       AND NOT EXISTS (SELECT 1 FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NOT NULL)
       AND NOT EXISTS (SELECT 1 FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at IS NOT NULL
                          AND p.due_at <= CASE WHEN pull_in THEN 'infinity' ELSE now END)
       AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_subscription_rel r WHERE r.srrelid = '@schema@.event'::regclass),
           (SELECT min(p.due_at) FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at IS NOT NULL),
           NOT EXISTS (SELECT 1 FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at IS NOT NULL
                          AND NOT p.delayed)
    INTO idle, due, through;
END
$outbox$;
COMMENT ON FUNCTION @schema@._idle(@schema@.consumer, boolean, timestamptz) IS 'whether a consumer surely has nothing to do';
