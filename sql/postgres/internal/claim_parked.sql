-- Leases parked events that are due, each with the events that wait behind it, and describes the
-- claim in r. due is the earliest due time. No parked event is due before `since`, unless the clock
-- was set back: see _clock_repair. Under _lock_consumer.
--
-- Suspect events were in flight when a worker vanished. q.suspect_policy (enum suspect_policy):
--     0  skip them, and claim other events
--     1  claim nothing if the first due event is suspect
--     2  claim a suspect alone, and blame it: if this worker vanishes, that counts as an attempt
--     3  claim a suspect alone
--     4  treat suspects like others
CREATE OR REPLACE FUNCTION @schema@._claim_parked(
    c @schema@.consumer, q @schema@._request, since timestamptz, now timestamptz,
    INOUT r @schema@._answer, OUT due timestamptz) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    skip_suspects boolean := q.suspect_policy = 0;
    blame boolean := q.suspect_policy = 2;
    lease interval := q.lease_ms * interval '1 millisecond';
    f record;
BEGIN
    f := @schema@._find_due(c, q, since, now);
    IF f.due IS NULL AND q.clock_repair AND @schema@._clock_repair(c.name, since, now) THEN
        since := '-infinity';
        f := @schema@._find_due(c, q, since, now);
    END IF;
    r.suspect_due := f.suspect_due
                     OR (skip_suspects
                         AND EXISTS (SELECT 1 FROM @schema@.parked p
                                     WHERE p.consumer = c.name AND p.claim IS NULL
                                       AND p.due_at >= since AND p.due_at <= now
                                       AND p.crashes > 0));
    due := f.due;
    IF due IS NULL THEN
        SELECT p.due_at INTO due FROM @schema@.parked p
        WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at >= since
          AND (p.crashes = 0 OR NOT skip_suspects)
        ORDER BY p.due_at, p.seq LIMIT 1;
    END IF;
    IF f.seqs = '{}' THEN RETURN; END IF;

    r.epoch := @schema@._next_epoch();
    UPDATE @schema@.parked p SET claim = r.epoch WHERE p.ctid = ANY (f.rows);
    GET DIAGNOSTICS r.n = ROW_COUNT;
    r.lane := -1;
    r.from_seq := 0;
    r.to_seq := 0;
    r.suspect := f.suspect;
    INSERT INTO @schema@.claim (consumer, epoch, lane, floor, from_seq, to_seq, owner,
        locked_until, lease, seqs, blamed)
    VALUES (c.name, r.epoch, -1, 0, 0, 0, q.owner, now + lease, lease, f.seqs, f.suspect AND blame);
END $outbox$;

-- Shortens the waits that grew when the clock was set back. Returns whether it is worth searching
-- for due events again, from the beginning.
CREATE OR REPLACE FUNCTION @schema@._clock_repair(
    consumer text, since timestamptz, now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    UPDATE @schema@.parked p SET due_at = now + p.wait
    WHERE p.consumer = $1 AND p.claim IS NULL AND NOT p.delayed AND p.due_at > now + p.wait;
    RETURN FOUND OR since > '-infinity';
END $outbox$;

-- Finds the parked events to claim, in order of their time, each with those behind it, and their
-- rows, whose ctids do not change under the lock. due: the first is due then; NULL: none is due.
CREATE OR REPLACE FUNCTION @schema@._find_due(
    c @schema@.consumer, q @schema@._request, since timestamptz, now timestamptz,
    OUT seqs bigint[], OUT rows tid[], OUT due timestamptz, OUT suspect boolean,
    OUT suspect_due boolean) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    apart boolean := q.suspect_policy < 4; -- suspects go alone
    odd boolean; -- one of them goes alone, or is not the first of its key
    found_odd record;
BEGIN
    suspect := false;
    suspect_due := false;
    -- The nested loop (no other plan is possible) reads no more rows than are claimed.
    SELECT coalesce(array_agg(t.seq), '{}'), coalesce(array_agg(t.at), '{}'), min(t.due_at),
           coalesce(bool_or(t.odd), false)
    INTO seqs, rows, due, odd
    FROM (SELECT f.seq, f.at, f.odd, p.due_at
          FROM @include due_events(c.name, q, apart)@ p,
               LATERAL @include followed(c.name, q, p, apart)@ f
          LIMIT q.max_events) t;
    IF odd THEN
        found_odd := @schema@._find_odd(c, q, since, now);
        seqs := found_odd.seqs;
        rows := found_odd.rows;
        suspect := found_odd.suspect;
        suspect_due := found_odd.suspect_due;
    END IF;
END $outbox$;

-- Does the same if some of the due events go alone or are not the first of their key.
CREATE OR REPLACE FUNCTION @schema@._find_odd(
    c @schema@.consumer, q @schema@._request, since timestamptz, now timestamptz,
    OUT seqs bigint[], OUT rows tid[], OUT suspect boolean, OUT suspect_due boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    apart boolean := q.suspect_policy < 4; -- suspects go alone
    wait_for_suspect boolean := q.suspect_policy = 1;
    h record;
    keys bigint[] := '{}';
    behind bigint[] := '{}';
    has_followers boolean := false;
BEGIN
    seqs := '{}';
    rows := '{}';
    suspect := false;
    suspect_due := false;
    -- `near` has the first two events of the key.
    FOR h IN SELECT p.seq, p.key, p.alone, p.at,
                    CASE WHEN p.key <> 0 THEN ARRAY( -- forces the index: see _parked_rows
                        SELECT x.seq FROM @schema@.parked x
                        WHERE x.consumer = c.name AND x.key BETWEEN p.key AND p.key
                        ORDER BY x.key, x.seq LIMIT 2) END AS near
             FROM @include due_events(c.name, q, apart)@ p LOOP
        IF h.near[1] < h.seq THEN
            behind := behind || h.seq;
            CONTINUE;
        END IF;
        suspect_due := suspect_due OR (h.alone AND wait_for_suspect AND seqs = '{}');
        EXIT WHEN h.alone AND (seqs <> '{}' OR wait_for_suspect);
        seqs := seqs || h.seq;
        keys := keys || h.key;
        rows := rows || h.at;
        has_followers := has_followers OR h.near[2] IS NOT NULL;
        suspect := h.alone;
        EXIT WHEN h.alone;
    END LOOP;
    IF behind <> '{}' THEN -- an earlier event of its key was parked since: it waits behind that
        UPDATE @schema@.parked p SET due_at = NULL
        WHERE p.ctid = ANY (@schema@._parked_rows(c.name, behind)) AND p.claim IS NULL;
    END IF;
    IF has_followers AND NOT suspect THEN
        SELECT array_agg(t.seq), array_agg(t.at) INTO seqs, rows
        FROM (SELECT f.seq, f.at
              FROM (SELECT o.seq, o.key, o.at, false AS alone
                    FROM unnest(seqs, keys, rows) AS o (seq, key, at)) p,
                   LATERAL @include followed(c.name, q, p, apart)@ f
              LIMIT q.max_events) t;
    END IF;
END $outbox$;

-- Retries of parked events in simple cases, for _turn_next, under the consumer's lock.
-- _claim_parked and _settle_claim handle all cases.

-- Finds the parked events that are due, each with those behind it, and their rows. seqs is NULL if
-- _claim_parked is needed: an event was in flight during a crash, or another of its key is in a
-- claim, has a due time, or precedes it, or the event is not before those of claim `was`, which may
-- be parked after this query. No event is due before `since`. The event numbers must be those of l.
CREATE OR REPLACE FUNCTION @schema@._due_together(
    l @schema@.lane, was @schema@.claim, max_events int, since timestamptz, now timestamptz,
    OUT seqs bigint[], OUT rows tid[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    odd boolean;
BEGIN
    IF current_user <> @schema@._caller() THEN
        PERFORM set_config('outbox.cluster', '', true); -- see _turn_home
    END IF;
    IF NOT @schema@._at_home(l.home, @schema@._here()) THEN RETURN; END IF;

    -- A nested loop: no other plan is possible. Both sides use the intended index (_parked_rows).
    SELECT array_agg(f.seq), array_agg(f.at),
           bool_or(f.odd) OR max(f.seq) > was.from_seq
    INTO seqs, rows, odd
    FROM (SELECT x.seq, x.at, x.crashes > 0 OR x.attempts >= 1 << 23 OR x.seq < p.seq
                 OR x.seq > p.seq AND (x.claim IS NOT NULL OR x.due_at IS NOT NULL) AS odd
          FROM (SELECT y.seq, y.key, y.crashes, y.attempts, y.due_at, y.ctid AS at
                FROM @schema@.parked y
                WHERE y.consumer = l.consumer AND y.claim IS NULL
                  AND y.due_at >= since AND y.due_at <= now
                ORDER BY y.due_at, y.seq LIMIT max_events) p,
               LATERAL (SELECT p.seq, p.at, p.crashes, p.attempts, NULL::bigint AS claim, p.due_at
                        WHERE p.key = 0
                        UNION ALL
                        (SELECT y.seq, y.ctid, y.crashes, y.attempts, y.claim, y.due_at
                         FROM @schema@.parked y
                         WHERE y.consumer = l.consumer AND y.key BETWEEN p.key AND p.key
                           AND p.key <> 0
                         ORDER BY y.key, y.seq LIMIT max_events)) x
          LIMIT max_events) f;
    IF odd THEN seqs := NULL; END IF;
END $outbox$;

-- Puts the parked events at `rows` into claim k. It returns their seqs, in order, and the history
-- of each as one number: milliseconds it has been failing (from bit 24 on), attempts used (from bit
-- 1 on), and whether it was proven to be at fault.
CREATE OR REPLACE FUNCTION @schema@._take_due(
    k @schema@.claim, rows tid[], now timestamptz, OUT seqs bigint[], OUT past bigint[])
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    WITH taken AS (
        UPDATE @schema@.parked p SET claim = k.epoch WHERE p.ctid = ANY (_take_due.rows)
        RETURNING p.seq, p.attempts, p.failing_since, p.proven)
    SELECT array_agg(t.seq), array_agg(
               (least(greatest(floor(extract(epoch FROM now - t.failing_since) * 1000), 0),
                      549755813887)::bigint << 24) | (t.attempts << 1) | t.proven::int)
    INTO seqs, past
    FROM (SELECT x.seq, x.attempts::bigint, x.failing_since, x.proven
          FROM taken x ORDER BY x.seq) t;
END $outbox$;

-- Records how claim k of parked events ended, and notes in their lane how many were delivered. It
-- leaves the claim's own row alone. No parked event has a time before `since`.
CREATE OR REPLACE FUNCTION @schema@._settle_retried(
    c @schema@.consumer, k @schema@.claim, q @schema@._request, since timestamptz,
    now timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    failed bigint;
    first_due timestamptz;
BEGIN
    failed := @schema@._settle_parked(c, k, q.outcomes, 0, now);
    first_due := @include first_due(k.consumer, since)@;
    -- The next scan need not step over the settled events.
    UPDATE @schema@.lane x
    SET version = x.version + 1, delivered = x.delivered + greatest(q.tried - failed, 0),
        due_from = least(first_due, now - interval '10 milliseconds')
    WHERE x.consumer = k.consumer AND x.lane = -1
      AND x.version = (SELECT y.version FROM @schema@.lane y
                       WHERE y.consumer = k.consumer AND y.lane = -1
                       ORDER BY y.version DESC LIMIT 1);
END $outbox$;

-- The row locations (ctid) of the parked events that claim k holds. They are close together, unless
-- many others were parked between them.
CREATE OR REPLACE FUNCTION @schema@._retried_rows(k @schema@.claim) RETURNS tid[]
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    n int := cardinality(k.seqs);
    rows tid[] := ARRAY(
        SELECT x.at
        FROM (SELECT p.ctid AS at, p.claim FROM @schema@.parked p -- forces it: see _parked_rows
              WHERE p.consumer = k.consumer
                AND p.seq BETWEEN (SELECT min(o.seq) FROM unnest(k.seqs) AS o (seq))
                              AND (SELECT max(o.seq) FROM unnest(k.seqs) AS o (seq))
              ORDER BY p.seq LIMIT 4 * n) x
        WHERE x.claim = k.epoch);
BEGIN
    IF cardinality(rows) < n THEN rows := @schema@._claimed_rows(k); END IF;
    RETURN rows;
END $outbox$;
