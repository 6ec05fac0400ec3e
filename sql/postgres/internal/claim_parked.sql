-- _claim_parked: leases parked events that are due, each with what waits behind it; returns the
-- epoch, or NULL. careful_mode: 0 skip careful events, 1 claim nothing when the first one due is
-- careful, 2 and 3 take it, alone, 4 take them as all others. With 2 it counts as an attempt if the
-- worker vanishes. since: none has an earlier time. pull_in: if nothing is due from there on, look
-- at all of them, also for those that a clock set back made wait for longer than they were told to.
-- Under lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._claim_parked(
    c @schema@.consumer, owner text, max_events int, lease interval, careful_mode int,
    pull_in boolean, since timestamptz, now timestamptz,
    OUT epoch bigint, OUT n int, OUT careful boolean, OUT careful_due boolean, OUT due timestamptz)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    h record;
    e bigint;
    seqs bigint[] := '{}';
    keys bigint[] := '{}';
    rows tid[] := '{}'; -- where they are; under the lock they stay there
    behind bigint[] := '{}';
    followed boolean := false; -- something waits behind one of them
    odd boolean; -- one of them goes alone, or is not the first of its key
    apart boolean := careful_mode < 4; -- careful events go alone
BEGIN
    n := 0;
    careful := false;
    careful_due := false;
    IF careful_mode = 0 THEN
        careful_due := EXISTS (SELECT 1 FROM @schema@.parked p
                               WHERE p.consumer = c.name AND p.claim IS NULL
                                 AND p.due_at >= since AND p.due_at <= now AND p.crashes > 0);
    END IF;
    FOR turn IN 1 .. 2 LOOP
        -- Which are due, in the order of their time, each with what waits behind it? A nested loop,
        -- as nothing else can be made of it, looks at no more of them than are claimed.
        SELECT coalesce(array_agg(t.seq), '{}'), coalesce(array_agg(t.at), '{}'), min(t.due_at),
               coalesce(bool_or(t.odd), false)
        INTO seqs, rows, due, odd
        FROM (SELECT f.seq, f.at, f.odd, p.due_at
              FROM (SELECT x.seq, x.key, x.crashes > 0 AND apart AS alone, x.ctid AS at,
                           x.due_at
                    FROM @schema@.parked x
                    WHERE x.consumer = c.name AND x.claim IS NULL
                      AND x.due_at >= since AND x.due_at <= now
                      AND (careful_mode > 0 OR x.crashes = 0)
                    ORDER BY x.due_at, x.seq LIMIT max_events) p, LATERAL (
                   SELECT p.seq, p.at, p.alone AS odd WHERE p.key = 0
                   UNION ALL
                   SELECT r.seq, r.at, p.alone OR r.seq < p.seq
                   FROM (SELECT x.seq, x.ctid AS at,
                                bool_or(x.seq > p.seq AND (x.crashes > 0 AND apart
                                                           OR x.claim IS NOT NULL
                                                           OR x.due_at IS NOT NULL))
                                    OVER (ORDER BY x.key, x.seq) AS stop
                         FROM @schema@.parked x -- by this index: see _parked_rows
                         WHERE x.consumer = c.name AND x.key BETWEEN p.key AND p.key AND p.key <> 0
                         ORDER BY x.key, x.seq LIMIT max_events) r
                   WHERE NOT r.stop) f
              LIMIT max_events) t;
        EXIT WHEN due IS NOT NULL AND NOT odd;

        -- `near` has the first two of the key.
        seqs := '{}';
        rows := '{}';
        FOR h IN SELECT p.seq, p.key, p.alone, p.at, p.due_at,
                        CASE WHEN p.key <> 0 THEN ARRAY( -- by this index: see _parked_rows
                            SELECT x.seq FROM @schema@.parked x
                            WHERE x.consumer = c.name AND x.key BETWEEN p.key AND p.key
                            ORDER BY x.key, x.seq LIMIT 2) END AS near
                 FROM (SELECT x.seq, x.key, x.crashes > 0 AND apart AS alone, x.ctid AS at,
                              x.due_at
                       FROM @schema@.parked x
                       WHERE x.consumer = c.name AND x.claim IS NULL
                         AND x.due_at >= since AND x.due_at <= now
                         AND (careful_mode > 0 OR x.crashes = 0)
                       ORDER BY x.due_at, x.seq LIMIT max_events) p
                 WHERE odd LOOP
            IF h.near[1] < h.seq THEN
                behind := behind || h.seq;
                CONTINUE;
            END IF;
            careful_due := careful_due OR (h.alone AND careful_mode = 1 AND seqs = '{}');
            EXIT WHEN h.alone AND (seqs <> '{}' OR careful_mode = 1);
            seqs := seqs || h.seq;
            keys := keys || h.key;
            rows := rows || h.at;
            followed := followed OR h.near[2] IS NOT NULL;
            careful := h.alone;
            EXIT WHEN h.alone;
        END LOOP;
        EXIT WHEN due IS NOT NULL;

        -- When is the next one?
        SELECT p.due_at INTO due FROM @schema@.parked p
        WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at >= since
          AND (careful_mode > 0 OR p.crashes = 0)
        ORDER BY p.due_at, p.seq LIMIT 1;
        IF NOT pull_in OR turn = 2 THEN
            RETURN;
        END IF;
        UPDATE @schema@.parked p SET due_at = now + p.wait
        WHERE p.consumer = c.name AND p.claim IS NULL AND NOT p.delayed
          AND p.due_at > now + p.wait;
        IF NOT FOUND AND since = '-infinity' THEN
            RETURN;
        END IF;
        since := '-infinity';
        due := NULL;
    END LOOP;
    -- due, but another of its key was parked before it since: it goes behind that
    IF behind <> '{}' THEN
        UPDATE @schema@.parked p SET due_at = NULL
        WHERE p.ctid = ANY (@schema@._parked_rows(c.name, behind)) AND p.claim IS NULL;
    END IF;
    IF seqs = '{}' THEN
        RETURN;
    END IF;

    -- Each takes along what waits behind it, up to one that is careful, in a claim or due by
    -- itself. A nested loop, as nothing else can be made of it, gives them in the order of the
    -- array.
    IF followed AND NOT careful THEN
        SELECT array_agg(a.seq), array_agg(a.at) INTO seqs, rows
        FROM (SELECT t.seq, t.at
              FROM unnest(seqs, keys, rows) AS f (seq, key, at), LATERAL (
                   SELECT f.seq, f.at
                   UNION ALL
                   SELECT r.seq, r.at
                   FROM (SELECT x.seq, x.ctid AS at,
                                bool_or(x.crashes > 0 AND apart OR x.claim IS NOT NULL
                                        OR x.due_at IS NOT NULL)
                                    OVER (ORDER BY x.key, x.seq) AS stop
                         FROM @schema@.parked x
                         WHERE x.consumer = c.name AND x.key BETWEEN f.key AND f.key
                           AND x.seq > f.seq AND f.key <> 0
                         ORDER BY x.key, x.seq LIMIT max_events) r
                   WHERE NOT r.stop) t
              LIMIT max_events) a;
    END IF;
    e := @schema@._next_epoch();
    UPDATE @schema@.parked p SET claim = e
    WHERE p.ctid = ANY (rows);
    GET DIAGNOSTICS n = ROW_COUNT;
    INSERT INTO @schema@.claim (consumer, epoch, lane, floor, from_seq, to_seq, owner,
        locked_until, lease, seqs, blamed)
    VALUES (c.name, e, -1, 0, 0, 0, _claim_parked.owner, now + _claim_parked.lease,
        _claim_parked.lease, seqs,
        careful AND careful_mode = 2);
    epoch := e;
END
$outbox$;
COMMENT ON FUNCTION @schema@._claim_parked(@schema@.consumer, text, int, interval, int, boolean,
    timestamptz, timestamptz) IS
    'leases parked events that are due';
