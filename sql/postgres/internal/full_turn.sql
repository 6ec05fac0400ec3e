-- Every kind of turn, under the consumer's lock: check that this is the outbox that the consumer
-- knows (_turn_home); take over expired claims; settle; claim (_turn_claim); store the lanes. head:
-- see _claim_fresh.
CREATE OR REPLACE FUNCTION @schema@._turn_full(q @schema@._request, head bigint)
RETURNS @schema@._answer LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    r @schema@._answer;
    c @schema@.consumer;
    k @schema@.claim;
    -- the lanes' rows; [1] is lane -1 (parked events), [i + 2] is lane i
    ls @schema@.lane[];
    dirty boolean[];       -- which of them have to be stored
    home record;
    claimed record;
    astray text;
    i int;
    idle record;
    surely_idle boolean := false;
    claims_from bigint;
    last_epoch bigint;
    expired boolean;
    too_long boolean;
    due timestamptz;
    first_due timestamptz; -- of the parked events; NULL: none is parked
    claiming boolean;
    retried boolean := false; -- parked events were settled
    now timestamptz;
    waited interval := '0';
    slack interval := '1 s'; -- the turn that began first may get the lock second
BEGIN
    -- Usually a poll finds nothing to do, and needs no lock to determine that.
    IF q.epoch = 0 AND q.max_events > 0 AND head IS NOT NULL THEN
        PERFORM @schema@._check_transaction();
        now := @schema@._clock();
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = q.consumer;
        IF FOUND AND NOT (c.marks AND EXISTS (
                          SELECT 1 FROM @schema@.marking m
                          JOIN @schema@.adopted_row w ON w.marking = m.id
                          WHERE m.consumer = c.name)) THEN
            SELECT * INTO idle FROM @schema@._idle(c, q.clock_repair, now);
            surely_idle := coalesce(idle.idle, false);
        END IF;
    END IF;
    IF NOT surely_idle THEN
        waited := @schema@._lock_consumer(
            q.consumer, q.known IS NULL AND q.max_events > 0 AND q.epoch = 0);
        IF waited IS NULL THEN
            r := @schema@._no_answer(q.place, NULL);
            r.busy := true;
            r.wait_ms := 100;
            RETURN r;
        END IF;
        q.known := coalesce(q.known, '{}');
        -- one time for all steps, so that they agree on which claims are alive
        now := @schema@._clock() + waited;
        SELECT * INTO c FROM @schema@.consumer x WHERE x.name = q.consumer;
    END IF;
    r := @schema@._no_answer(q.place, now);
    IF c.name IS NULL THEN
        PERFORM @schema@._check_whole();
        RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed',
            q.consumer USING ERRCODE = 'OB003';
    END IF;
    PERFORM @schema@._check_tenant(c);
    r.paused := c.paused;
    r.changed := coalesce(c.ordering <> q.ordering OR c.lanes <> q.lanes
                          OR c.events <> q.events OR c.predicate <> q.predicate, false);
    IF surely_idle THEN
        IF NOT r.paused AND NOT r.changed THEN
            due := idle.due;
            r.through := idle.through;
        END IF;
        r.wait_ms := @schema@._ms_until(due, now);
        RETURN r;
    END IF;

    -- The query of _places, written out so that it is planned again when the table gets a column.
    SELECT array_agg(x.place ORDER BY n), max((x.place).claims_from) INTO ls, claims_from
    FROM generate_series(-1, c.lanes - 1) AS n,
         LATERAL (SELECT y AS place FROM @schema@.lane y
                  WHERE y.consumer = c.name AND y.lane = n ORDER BY y.version DESC LIMIT 1) x;
    IF array_length(ls, 1) IS DISTINCT FROM c.lanes + 1 THEN
        PERFORM @schema@._lost_place(c);
    END IF;
    dirty := array_fill(false, ARRAY[array_length(ls, 1)]);
    -- No parked event gets a time before now, so due_from is valid unless the clock was set back.
    IF ls[1].due_from > now THEN
        ls[1].due_from := NULL;
        dirty[1] := true;
    END IF;

    IF q.max_events > 0 THEN
        home := @schema@._turn_home(ls);
        IF home.wrong IS NOT NULL OR home.repaired THEN
            RETURN @schema@._turn_repair(c, q, home.wrong, now, r);
        END IF;
        IF home.here IS NOT NULL THEN
            FOR i IN 1 .. array_length(ls, 1) LOOP
                ls[i].home := home.here;
                dirty[i] := true;
            END LOOP;
        END IF;
        IF home.moved THEN head := NULL; END IF;
    END IF;

    SELECT bool_or(x.locked_until <= now), bool_or(x.locked_until > now + x.lease + slack),
           max(x.epoch)
    INTO expired, too_long, last_epoch
    FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    -- A lease taken while the clock was ahead must not last forever.
    IF too_long THEN
        UPDATE @schema@.claim x SET locked_until = now + x.lease
        WHERE x.consumer = c.name AND x.epoch >= claims_from
          AND x.locked_until > now + x.lease + slack;
    END IF;
    IF expired AND NOT r.changed AND q.max_attempts > 0 THEN
        SELECT t.crashed, t.buried INTO r.crashed, r.buried
        FROM @schema@._take_over(c, claims_from, q.max_attempts, now, q.known) t;
    END IF;

    IF q.epoch <> 0 THEN -- however late: as long as the claim exists, no worker has taken it over
        SELECT * INTO k FROM @schema@.claim x
        WHERE x.consumer = c.name AND x.epoch = q.epoch AND x.owner = q.owner;
        r.lost := NOT FOUND;
        IF NOT r.lost THEN
            i := k.lane + 2;
            ls[i].claims_from := claims_from;
            ls[i] := @schema@._settle_claim(c, ls[i], k, q, now);
            dirty[i] := true;
            retried := k.lane = -1;
        END IF;
    END IF;

    claiming := q.max_events > 0 AND NOT r.changed AND NOT r.paused;
    IF claiming OR retried THEN first_due := @include first_due(c.name, ls[1].due_from)@; END IF;
    IF retried THEN
        -- The next scan need not step over the settled events. The margin is for turns that read
        -- the clock earlier but get the lock later.
        ls[1].due_from := least(first_due, now - interval '10 milliseconds');
    END IF;
    IF claiming AND q.clock_repair AND first_due IS NULL THEN
        first_due := @include first_due(c.name, NULL::timestamptz)@;
    END IF;

    IF claiming THEN
        claimed := @schema@._turn_claim(c, q, head, now, first_due, claims_from, last_epoch, r, ls,
                                        dirty);
        r := claimed.r;
        ls := claimed.ls;
        dirty := claimed.dirty;
        due := claimed.due;
        astray := claimed.astray;
    END IF;

    PERFORM @schema@._put_lanes(ls, dirty);
    IF astray IS NOT NULL THEN
        PERFORM @schema@._repair_outbox(astray);
        r.skipped := true;
        r.wait_ms := -1;
        RETURN r;
    END IF;
    r.wait_ms := @schema@._ms_until(due, now);
    IF c.marks THEN PERFORM @schema@._mark_adopted(c); END IF;
    RETURN r;
END $outbox$;

-- Ends a turn that found another outbox than the consumer knows: it settles, repairs (wrong
-- describes the problem; NULL: already repaired), and claims nothing. A repair may end all claims,
-- so a claim that was delivered whole is settled before it. Other outcomes name events by seq,
-- which may now be other events: they are settled after it. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._turn_repair(
    c @schema@.consumer, q @schema@._request, wrong text, now timestamptz,
    INOUT r @schema@._answer) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    delivered_whole boolean := q.outcomes = '[]' AND q.release_from = 0;
BEGIN
    IF delivered_whole THEN r.lost := NOT @schema@._settle_only(c, q, now); END IF;
    PERFORM @schema@._repair_outbox(wrong) WHERE wrong IS NOT NULL;
    IF NOT delivered_whole THEN r.lost := NOT @schema@._settle_only(c, q, now); END IF;
    r.skipped := true;
    r.wait_ms := -1;
END $outbox$;

-- Settles a claim, and returns false if the worker no longer has it. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._settle_only(
    c @schema@.consumer, q @schema@._request, now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k @schema@.claim;
    l @schema@.lane;
BEGIN
    IF q.epoch = 0 THEN RETURN true; END IF;
    SELECT * INTO k FROM @schema@.claim x
    WHERE x.consumer = c.name AND x.epoch = q.epoch AND x.owner = q.owner;
    IF NOT FOUND THEN RETURN false; END IF;
    SELECT * INTO l FROM @schema@._lanes(c.name, c.lanes) x WHERE x.lane = k.lane;
    PERFORM @schema@._put_lane(@schema@._settle_claim(c, l, k, q, now));
    RETURN true;
END $outbox$;

-- The milliseconds from now to due, rounded up; -1 if due is NULL.
CREATE OR REPLACE FUNCTION @schema@._ms_until(due timestamptz, now timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN $1 IS NULL THEN -1 ELSE greatest(ceil(extract(epoch FROM $1 - $2) * 1000), 0) END;

-- Makes the claim of _turn_full: of parked events that are due, or of the next events of a free
-- lane, as q.parked_first says. first_due is the first due time of a parked event, NULL if none is
-- parked. due is when to try again. astray: event numbers restarted: store the changed lanes, then
-- repair. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._turn_claim(
    c @schema@.consumer, q @schema@._request, head bigint, now timestamptz,
    first_due timestamptz, claims_from bigint, last_epoch bigint,
    INOUT r @schema@._answer, INOUT ls @schema@.lane[], INOUT dirty boolean[],
    OUT due timestamptz, OUT astray text) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    parked boolean := first_due IS NOT NULL;
    last bigint := greatest(last_epoch, claims_from - 1); -- the highest epoch known
    waits_for_suspect boolean := false;
    p record;
    f record;
    taken bigint := 0;
    kept boolean := false;
BEGIN
    IF parked AND q.parked_first THEN
        p := @schema@._claim_parked(c, q, first_due, now, r);
        r := p.r;
        due := p.due;
        waits_for_suspect := r.suspect_due AND q.suspect_policy = 1;
    END IF;
    IF r.n = 0 AND NOT waits_for_suspect AND NOT (parked AND c.ordering = 'global') THEN
        f := @schema@._claim_lane(c, q, head, now, claims_from,
                                  claims_from = 0 AND last_epoch IS NULL, r, ls, dirty, due);
        r := f.r;
        ls := f.ls;
        dirty := f.dirty;
        due := f.due;
        taken := f.taken;
        kept := f.kept;
        astray := f.astray;
        IF astray IS NOT NULL THEN RETURN; END IF;
    END IF;
    IF r.n = 0 AND parked AND NOT q.parked_first THEN
        p := @schema@._claim_parked(c, q, first_due, now, r);
        r := p.r;
        due := least(due, p.due);
    END IF;

    IF r.n = 0 THEN
        f := @schema@._claim_nothing(c, q, now, first_due, claims_from, taken, kept, r, ls, dirty,
                                     due);
        r := f.r;
        ls := f.ls;
        dirty := f.dirty;
        due := f.due;
        RETURN;
    END IF;
    IF r.epoch <= last THEN r.epoch := @schema@._refence(c.name, r.epoch, last); END IF;
    r.quiet := r.quiet AND NOT parked;
    IF r.lane >= 0 AND parked AND c.ordering = 'key' THEN
        SELECT h.held, h.keys INTO r.held, r.keys
        FROM @schema@._held(c, ls[r.lane + 2], r.from_seq, r.to_seq, r.n, first_due,
                            q.key_sample) h;
    END IF;
END $outbox$;

-- Claims the next events of the first free lane that has any. taken: the lanes that other workers'
-- claims cover. kept: some lanes are kept for another worker. due: when one of these is free.
--
-- A worker that holds a claim joins lanes (see groups.sql). One without a claim takes a single
-- lane, and leaves the others to workers that start at the same time; the only worker of a process
-- passes lane_hint -1, and takes all lanes of a new consumer.
CREATE OR REPLACE FUNCTION @schema@._claim_lane(
    c @schema@.consumer, q @schema@._request, head bigint, now timestamptz, claims_from bigint,
    is_new boolean, INOUT r @schema@._answer, INOUT ls @schema@.lane[], INOUT dirty boolean[],
    INOUT due timestamptz, OUT taken bigint, OUT kept boolean, OUT astray text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    joins boolean := c.lanes > 1
                     AND (cardinality(q.known) > 0 OR (is_new AND q.lane_hint = -1));
    leaders int[] := '{0}';
    lane int;
    i int;                 -- its index in ls
    until timestamptz;
    meets record;
    upto bigint;
    other @schema@.lane;
    f record;
BEGIN
    taken := 0;
    kept := false;
    IF c.ordering <> 'none' THEN
        SELECT coalesce(bit_or(@schema@._members(x.members, x.lane)), 0), min(x.locked_until)
        INTO taken, until
        FROM @schema@.claim x
        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.lane >= 0
          AND (x.epoch = ANY (q.known)) IS NOT TRUE;
    END IF;
    IF c.lanes > 1 THEN leaders := @schema@._behind_first(ls, greatest(q.lane_hint, 0)); END IF;

    FOREACH lane IN ARRAY leaders LOOP
        i := lane + 2;
        CONTINUE WHEN ls[i].leader IS NOT NULL; -- joined a lane tried before
        IF @schema@._members(ls[i].members, lane) & taken <> 0 THEN
            r.busy := true;
            due := least(due, until);
            CONTINUE;
        ELSIF @schema@._is_kept(ls[i], q.owner, now) THEN
            kept := true;
            due := least(due, ls[i].kept_until);
            CONTINUE;
        END IF;
        IF joins THEN
            SELECT y.ls, y.dirty INTO ls, dirty
            FROM @schema@._join_lanes(lane, taken, q.owner, now, ls, dirty) y;
            meets := @schema@._meets(lane, taken, q.owner, now, ls);
            upto := meets.upto;
            other := meets.other;
        END IF;
        f := @schema@._claim_fresh(c, q, head, now, upto, other, ls[i], r);
        r := f.r;
        astray := f.astray;
        EXIT WHEN astray IS NOT NULL;
        IF f.changed THEN
            ls[i] := f.l;
            ls[i].kept_for := NULL;
            ls[i].kept_until := NULL;
            dirty[i] := true;
        END IF;
        EXIT WHEN r.n > 0;
    END LOOP;
END $outbox$;

-- Ends a turn that found nothing to claim: due is when to try again, and r.through whether anything
-- is left to do. A worker without a claim gets a share of the lanes that are taken.
CREATE OR REPLACE FUNCTION @schema@._claim_nothing(
    c @schema@.consumer, q @schema@._request, now timestamptz, first_due timestamptz,
    claims_from bigint, taken bigint, kept boolean,
    INOUT r @schema@._answer, INOUT ls @schema@.lane[], INOUT dirty boolean[],
    INOUT due timestamptz) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    promised boolean;
    until timestamptz;
    live bigint;
BEGIN
    IF taken <> 0 AND c.lanes > 1 AND q.known = '{}' AND NOT r.skipped THEN
        SELECT y.ls, y.dirty, y.promised INTO ls, dirty, promised
        FROM @schema@._split_lanes(c, taken, q.owner, now, ls, dirty) y;
        IF promised THEN due := least(due, now + interval '50 milliseconds'); END IF;
    END IF;

    -- If an answer was lost, the worker waits for its own claim as for another worker's.
    SELECT min(x.locked_until) FILTER (WHERE x.locked_until > now
                                       AND (x.owner <> q.owner OR x.epoch <> ALL (q.known))),
           count(*)
    INTO until, live
    FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    due := least(due, until);
    r.through := live = 0 AND NOT r.skipped AND NOT kept
                 AND NOT (first_due IS NOT NULL AND EXISTS (
                     SELECT 1 FROM @schema@.parked x
                     WHERE x.consumer = c.name AND x.claim IS NULL AND x.due_at >= first_due
                       AND (NOT x.delayed OR x.due_at <= now)));
END $outbox$;

-- The events of lane l's open window with a seq in (from_seq, to_seq], n of them, that have to wait
-- behind a parked event of their key. If few keys are held up, it reads them all, by the first
-- parked event of each, which has a due time, none before `since`. A worker that computes keys
-- (sample) then gets the keys, and finds its events itself. Otherwise _held looks up the key of
-- each event. `held` may include events that the caller does not have.
CREATE OR REPLACE FUNCTION @schema@._held(
    c @schema@.consumer, l @schema@.lane, from_seq bigint, to_seq bigint, n int, since timestamptz,
    sample bigint, OUT held bigint[], OUT keys bigint[]) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    most bigint := 4 * n;
    dense boolean := to_seq - from_seq <= most;
    few boolean;
BEGIN
    keys := @schema@._held_keys(c.name, since, most + 1);
    few := cardinality(keys) <= most;
    IF keys = '{}' OR few AND @schema@._knows_keys(sample) THEN RETURN; END IF;
    IF dense AND few THEN
        SELECT array_agg(e.seq) INTO held FROM @schema@.event e
        WHERE e.seq > from_seq AND e.seq <= to_seq AND e.aggregate_id IS NOT NULL
          AND @schema@._key('key', e.aggregate_type, e.aggregate_id)
              IN (SELECT k FROM unnest(keys) AS k);
    ELSE
        SELECT array_agg(w.seq) INTO held
        FROM (SELECT e.seq, @schema@._key('key', e.aggregate_type, e.aggregate_id) AS key
              FROM @schema@._window_events(l.seen, l.floor, l.target, $3, $4, c.tenant) e
              WHERE e.aggregate_id IS NOT NULL OFFSET 0) w
        WHERE CASE WHEN few
                   THEN w.key IN (SELECT k FROM unnest(keys) AS k)
                   ELSE (SELECT true FROM @schema@.parked x
                         WHERE x.consumer = c.name AND x.key BETWEEN w.key AND w.key
                         ORDER BY x.key LIMIT 1) END;
    END IF;
    keys := NULL;
END $outbox$;

-- The keys of max_keys parked events with a due time (every held-up key has one), not before
-- `since`.
CREATE OR REPLACE FUNCTION @schema@._held_keys(consumer text, since timestamptz, max_keys bigint)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    RETURN ARRAY(SELECT x.key FROM @schema@.parked x
                 WHERE x.consumer = $1 AND x.due_at >= coalesce(since, '-infinity')
                 ORDER BY x.due_at, x.seq LIMIT max_keys); -- forces the index: see _parked_rows
END $outbox$;

-- Whether a worker computes keys as _key does, which its hash of a sample proves. The worker hashes
-- UTF-8, so this server must hash the same bytes.
CREATE OR REPLACE FUNCTION @schema@._knows_keys(sample bigint) RETURNS boolean LANGUAGE sql STABLE
RETURN coalesce(sample = @schema@._key('key', 'outbox', 'a key of more than a few bytes'), false)
       AND getdatabaseencoding() IN ('UTF8', 'SQL_ASCII');

-- Whether a consumer certainly has nothing to do: no claim, no parked event that is due, no unseen
-- event, no position to advance, and the outbox it knows. It takes no lock and writes nothing; one
-- statement reads everything at one moment. due and through are as in _turn_full.
CREATE OR REPLACE FUNCTION @schema@._idle(
    c @schema@.consumer, clock_repair boolean, now timestamptz,
    OUT idle boolean, OUT due timestamptz, OUT through boolean) LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    here text := @schema@._here();
BEGIN
    WITH l AS MATERIALIZED (SELECT * FROM @schema@._places(c.name, c.lanes)),
    s AS MATERIALIZED (SELECT coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0)
                              AS head),
    d AS MATERIALIZED (SELECT coalesce(max(l.due_from), '-infinity') AS since
                       FROM l WHERE l.lane = -1)
    SELECT -- Every lane has a row and is at home, has no open window, and knows the last seq.
           (SELECT count(*) = c.lanes + 1
                   AND bool_and(@schema@._at_home(l.home, here))
                   AND bool_and(l.lane < 0 OR l.leader IS NOT NULL OR
                       (l.target IS NULL
                        AND l.floor >= s.head
                        AND (l.window_end <= s.head) IS NOT FALSE
                        -- No event is new by its xid or seq, or late.
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
           -- With clock_repair, any waiting event may become due: see _clock_repair.
           AND NOT (clock_repair AND EXISTS (SELECT 1 FROM @schema@.parked p
                                        WHERE p.consumer = c.name AND p.claim IS NULL
                                          AND p.due_at >= '-infinity'))
           AND NOT @include is_fed()@,
           (SELECT min(p.due_at) FROM @schema@.parked p
            WHERE p.consumer = c.name AND p.claim IS NULL
              AND p.due_at >= (SELECT d.since FROM d)),
           NOT EXISTS (SELECT 1 FROM @schema@.parked p
                       WHERE p.consumer = c.name AND p.claim IS NULL
                         AND p.due_at >= (SELECT d.since FROM d) AND NOT p.delayed)
    INTO idle, due, through;
END $outbox$;
