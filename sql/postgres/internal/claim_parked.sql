-- _claim_parked: leases parked events that are due, each with what waits behind it; returns the epoch, or NULL. A careful
-- one goes alone, its attempt counted now. careful_mode: 0 skip careful events, 1 claim nothing when the first one due is
-- careful, 2 take it. pull_in: look for events that a clock set back made wait for longer than they were told to.
-- Under lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._claim_parked(c @schema@.consumer, owner text, max_events int, lease interval,
                                                 careful_mode int, pull_in boolean, now timestamptz, OUT epoch bigint,
                                                 OUT n int, OUT careful boolean, OUT careful_due boolean, OUT due timestamptz)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    h record;
    m int;
    e bigint;
BEGIN
    n := 0;
    careful := false;
    careful_due := false;
    IF careful_mode = 0 THEN
        careful_due := EXISTS (SELECT 1 FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL
                               AND p.due_at <= now AND p.careful);
    END IF;
    FOR turn IN 1 .. 2 LOOP
        SELECT p.due_at INTO due FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL
          AND p.due_at IS NOT NULL AND (careful_mode > 0 OR NOT p.careful) ORDER BY p.due_at LIMIT 1;
        EXIT WHEN due IS NULL OR due <= now OR NOT pull_in OR turn = 2;
        UPDATE @schema@.parked p SET due_at = now + p.wait WHERE p.consumer = c.name AND p.claim IS NULL AND NOT p.delayed
           AND p.due_at > now + p.wait;
        EXIT WHEN NOT FOUND;
    END LOOP;
    IF due IS NULL OR due > now THEN
        RETURN;
    END IF;
    FOR h IN SELECT p.seq, p.key, p.careful, p.key <> 0 AND EXISTS (SELECT 1 FROM @schema@.parked b
                        WHERE b.consumer = c.name AND b.key = p.key AND b.seq < p.seq) AS behind
             FROM @schema@.parked p
             WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at <= now AND (careful_mode > 0 OR NOT p.careful)
             ORDER BY p.due_at, p.seq LIMIT max_events LOOP
        IF h.behind THEN -- due, but another of its key was parked before it since: it goes behind that
            UPDATE @schema@.parked p SET due_at = NULL WHERE p.consumer = c.name AND p.seq = h.seq AND p.claim IS NULL;
            CONTINUE;
        END IF;
        careful_due := careful_due OR (h.careful AND careful_mode = 1 AND n = 0);
        EXIT WHEN n >= max_events OR (h.careful AND (n > 0 OR careful_mode = 1));
        e := coalesce(e, @schema@._next_epoch());
        UPDATE @schema@.parked p SET claim = e, attempts = p.attempts + p.careful::int
        WHERE p.consumer = c.name AND p.seq = h.seq;
        n := n + 1;
        careful := h.careful;
        EXIT WHEN h.careful;
        IF h.key <> 0 AND n < max_events THEN
            UPDATE @schema@.parked p SET claim = e
            FROM (SELECT f.seq FROM (SELECT x.seq, bool_or(x.careful OR x.claim IS NOT NULL OR x.due_at IS NOT NULL)
                                                OVER (ORDER BY x.seq) AS stop
                                     FROM @schema@.parked x WHERE x.consumer = c.name AND x.key = h.key AND x.seq > h.seq
                                     ORDER BY x.seq LIMIT max_events - n) f
                  WHERE NOT f.stop) t
            WHERE p.consumer = c.name AND p.seq = t.seq;
            GET DIAGNOSTICS m = ROW_COUNT;
            n := n + m;
        END IF;
    END LOOP;
    IF e IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO @schema@.claim (consumer, epoch, lane, floor, from_seq, to_seq, owner, locked_until, lease)
    VALUES (c.name, e, -1, 0, 0, 0, _claim_parked.owner, now + _claim_parked.lease, _claim_parked.lease);
    epoch := e;
END
$outbox$;
COMMENT ON FUNCTION @schema@._claim_parked(@schema@.consumer, text, int, interval, int, boolean, timestamptz) IS
    'leases parked events that are due';
