-- Claims: their fence, their events, and the claim of new events.

-- The fence of the next claim, which grows with every call. Its lower 20 bits are random: a server
-- that lost its last commits may assign a sequence number again, but not an epoch.
CREATE OR REPLACE FUNCTION @schema@._next_epoch() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (nextval('@schema@.epoch') << 20) | (random() * 1048575)::bigint;

-- Replaces `taken`, a claim's epoch that is too low, with one higher than `last`, the highest that
-- the consumer knows. The sequence is behind if only the tables were copied here, if it was set
-- back, or if sessions cache its numbers; it is advanced as well. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._refence(consumer text, taken bigint, last bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    e bigint := taken;
    at bigint;
    k @schema@.claim;
BEGIN
    LOCK TABLE @schema@.parked IN SHARE UPDATE EXCLUSIVE MODE; -- one caller; rows stay writable

    -- A sequence that is only a little behind is advanced with nextval: setval would race with
    -- other sessions. A number past 8796093022207 does not fit into the upper 43 bits.
    FOR i IN 1 .. 1000 LOOP
        EXIT WHEN e > last AND e < 9223372036854775807 - 1048576;
        at := nextval('@schema@.epoch');
        e := CASE WHEN at < 8796093022207 THEN (at << 20) | (random() * 1048575)::bigint ELSE 0 END;
    END LOOP;
    IF e <= last THEN
        PERFORM setval('@schema@.epoch', (last >> 20) + 100001);
        e := @schema@._next_epoch();
    END IF;
    IF e <= last THEN
        RAISE EXCEPTION 'the sequence @schema@.epoch does not grow' USING ERRCODE = 'OB006',
            HINT = 'as its owner: '
                   'ALTER SEQUENCE @schema@.epoch INCREMENT 1 NO MAXVALUE NO CYCLE CACHE 1';
    END IF;

    SELECT * INTO k FROM @schema@.claim x WHERE x.consumer = _refence.consumer AND x.epoch = taken;
    UPDATE @schema@.parked p SET claim = e WHERE p.ctid = ANY (@schema@._claimed_rows(k));
    UPDATE @schema@.claim x SET epoch = e WHERE x.consumer = _refence.consumer AND x.epoch = taken;
    RETURN e;
END $outbox$;

-- The events of a claim, with the history of their attempts. A claim of a lane is a range of seq in
-- a window, without earlier attempts; one of lane -1 is the parked events that carry its epoch.
-- attempts excludes the one about to be made. failing_ms is how long it has been failing. proven:
-- the event is at fault. It is plpgsql to cache the plans.
CREATE OR REPLACE FUNCTION @schema@._claimed(consumer text, epoch bigint)
RETURNS TABLE (
    seq bigint, id uuid, type text, aggregate_type text, aggregate_id text, version bigint,
    payload json, headers json, tenant text, created_at timestamptz, not_before timestamptz,
    attempts int, suspect boolean, failing_ms bigint, proven boolean, idempotency_key text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.seq, e.id::uuid, e.type::text, e.aggregate_type::text, e.aggregate_id::text, e.version,
           e.payload::json, e.headers::json, e.tenant::text, e.created_at::timestamptz,
           e.not_before::timestamptz, 0, false, 0::bigint, false, e.idempotency_key::text
    FROM @schema@.claim k, @schema@.consumer c,
         LATERAL @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq,
                                         c.tenant) e
    WHERE k.consumer = $1 AND k.epoch = $2 AND k.lane >= 0 AND c.name = $1
      AND (c.type_like IS NULL OR e.type LIKE ANY (c.type_like))
      AND @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id));
    IF FOUND THEN RETURN; END IF;

    RETURN QUERY
    SELECT p.seq, e.id::uuid, e.type::text, e.aggregate_type::text, e.aggregate_id::text, e.version,
           e.payload::json, e.headers::json, e.tenant::text, e.created_at::timestamptz,
           e.not_before::timestamptz, p.attempts, p.crashes > 0,
           greatest(floor(extract(epoch FROM @schema@._clock() - p.failing_since) * 1000)::bigint,
                    0),
           p.proven, e.idempotency_key::text
    FROM @schema@.claim k, unnest(k.seqs) AS o (seq),
         LATERAL (SELECT x.* FROM @schema@.parked x -- forces the index: see _parked_rows
                  WHERE x.consumer = k.consumer AND x.seq BETWEEN o.seq AND o.seq
                  ORDER BY x.seq LIMIT 1) p,
         LATERAL @include parked_event($1, p)@ e
    WHERE k.consumer = $1 AND k.epoch = $2 AND k.lane = -1 AND p.claim = $2;
END $outbox$;

-- Releases the events of a claim past `last`, because its worker cannot hold them all. Returns
-- false if the worker no longer has the claim, or if `last` is outside it.
CREATE OR REPLACE FUNCTION @schema@._shrink(
    consumer text, worker text, epoch bigint, last bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer;
    k @schema@.claim;
    l @schema@.lane;
    now timestamptz;
BEGIN
    @include through(_worker_shrink(consumer, worker, epoch, last))@
    now := @schema@._clock() + @schema@._lock_consumer(consumer);
    PERFORM @schema@._due_since(consumer, now);
    SELECT * INTO c FROM @schema@.consumer x WHERE x.name = _shrink.consumer;
    SELECT * INTO k FROM @schema@.claim x
    WHERE x.consumer = _shrink.consumer AND x.epoch = _shrink.epoch AND x.owner = _shrink.worker;
    -- A claim of parked events has no range.
    IF NOT FOUND OR last < k.from_seq OR last > k.to_seq AND k.lane >= 0 THEN RETURN false; END IF;

    IF k.lane = -1 THEN
        UPDATE @schema@.parked p SET claim = NULL
        WHERE p.ctid = ANY (@schema@._claimed_rows(k)) AND p.seq > last;
        RETURN true;
    END IF;

    -- The events past the new end of the range are released as in a settlement.
    SELECT * INTO l FROM @schema@._places(c.name, c.lanes) x WHERE x.lane = k.lane;
    PERFORM @schema@._put_lane(@schema@._release(c, l, k, last + 1, k.epoch, now));
    UPDATE @schema@.claim x SET to_seq = last WHERE x.consumer = c.name AND x.epoch = k.epoch;
    RETURN true;
END $outbox$;

-- Opens the next window of lane l, between two snapshots. It borrows the end of the window of
-- `other`, a group further ahead (NULL: none); upto is then the position of that group, if both now
-- work in the same window. astray: see _claim_fresh.
CREATE OR REPLACE FUNCTION @schema@._open_window(
    c @schema@.consumer, head bigint, other @schema@.lane, INOUT l @schema@.lane,
    OUT borrowed boolean, OUT upto bigint, OUT astray text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    passed bigint := @schema@._reached(c, l); -- no event up to it can be new
    known bigint := l.window_end;  -- the highest seq that the lane knows of
    again boolean;                 -- an unseen event has a seq up to passed
    behind boolean;                -- the sequence is behind an event that exists
    strange boolean;               -- an event past `known` appears to have been seen
    named pg_snapshot;
BEGIN
    l.pos := 0;
    borrowed := coalesce(other.window_end >= coalesce(known, 0)
                         AND pg_snapshot_xmax(coalesce(other.target, other.seen))
                             > pg_snapshot_xmax(l.seen), false);
    IF borrowed THEN
        l.target := coalesce(other.target, other.seen);
        l.next_floor := CASE WHEN other.target IS NULL THEN other.floor ELSE other.next_floor END;
        l.window_end := other.window_end;
        upto := CASE WHEN other.seen::text = l.seen::text THEN other.pos END;
        RETURN;
    END IF;

    -- The order matters, and each statement has its own snapshot: an event that the target neither
    -- shows nor names as running has a seq past next_floor, and one that it shows is not past
    -- window_end.
    l.next_floor := coalesce(head, passed, 0);
    l.target := pg_current_snapshot();
    l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);

    -- A tenant's worker may not see all events, so it does not ask.
    SELECT @include unseen_and_passed(l.seen, passed)@,
           @include shown_past_end(l.target, l.window_end)@,
           @include seen_past_known(l.seen, known)@
    INTO again, behind, strange
    WHERE c.tenant = '';
    IF l.window_end < known OR behind OR again THEN
        astray := format('event numbers began again: the last one given out is %s, '
                         'consumer "%s" was at %s', l.window_end, c.name, known);
    ELSIF strange THEN
        astray := format('events past %s, which consumer "%s" had reached, are of '
                         'transactions from before that', known, c.name);
    ELSIF @include is_fed()@ THEN
        PERFORM @schema@._check_fed();
    END IF;

    -- If too many transactions are running to name them, a lower floor is correct, only slower.
    named := @schema@._name_running(l.target);
    l.target := coalesce(named, l.target);
    IF named IS NULL THEN l.next_floor := coalesce(passed, 0); END IF;
END $outbox$;

-- Scans the window of lane l from its next event on, a range of `span` numbers, and advances l past
-- it, or past the last of max_events events: n were found in (from_seq, l.pos]. `next` and no_upto
-- are the results of _window_step. met: l stopped at the group at upto.
CREATE OR REPLACE FUNCTION @schema@._scan_window(
    c @schema@.consumer, next bigint, no_upto bigint, upto bigint, span bigint, max_events int,
    INOUT l @schema@.lane, OUT n int, OUT from_seq bigint, OUT met boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    whole boolean := @schema@._members(l.members, l.lane) = @schema@._all_lanes(c.lanes);
    start bigint := @schema@._starts_after(c.start_seen, c.start_floor);
    range_end bigint := least(next + span - 1, l.window_end);
    last bigint;
BEGIN
    n := 0;
    from_seq := l.pos;
    met := upto > l.pos AND coalesce(next, no_upto) > upto;
    IF met THEN
        l.pos := upto;
    ELSIF next IS NULL THEN
        l.pos := no_upto;
    ELSIF next <= start THEN
        l.pos := least(start, l.window_end); -- a late event from before the start
    ELSE
        IF upto > l.pos THEN range_end := least(range_end, upto); END IF;
        SELECT count(*), max(x.seq) INTO n, last
        FROM (SELECT w.seq
              FROM @schema@._window_events(l.seen, l.floor, l.target, l.pos, range_end, c.tenant) w
              WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
                AND (whole OR @schema@._is_member(l.members, l.lane,
                         @schema@._lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id)))
              ORDER BY w.seq LIMIT max_events) x;
        l.pos := CASE WHEN n < max_events THEN range_end ELSE last END;
    END IF;
END $outbox$;

-- Finds the next events of lane l, at most q.max_events, and advances l past them: there are r.n in
-- (r.from_seq, l.pos]. changed: l has to be stored. For the rest see _claim_fresh.
CREATE OR REPLACE FUNCTION @schema@._find_fresh(
    c @schema@.consumer, q @schema@._request, head bigint, upto bigint, other @schema@.lane,
    INOUT l @schema@.lane, INOUT r @schema@._answer, OUT changed boolean, OUT astray text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    most bigint := 10000;  -- rows scanned in one step
    whole boolean := @schema@._members(l.members, l.lane) = @schema@._all_lanes(c.lanes);
    span bigint := CASE WHEN whole THEN q.max_events ELSE q.max_events * c.lanes END;
    until timestamptz := clock_timestamp() + interval '25 milliseconds';
    w record;
    step record;
    part record;
    opened boolean;
    borrowed boolean;
    at_end boolean;
    skipped boolean;
BEGIN
    IF c.type_like IS NOT NULL OR NOT whole OR c.tenant <> '' THEN
        span := least(span, most); -- reading rejected events takes time, too
    END IF;
    changed := false;
    LOOP
        opened := l.target IS NULL;
        borrowed := false;
        IF opened THEN
            w := @schema@._open_window(c, head, other, l);
            l := w.l;
            upto := w.upto;
            borrowed := w.borrowed;
            astray := w.astray;
            EXIT WHEN astray IS NOT NULL;
        END IF;
        step := @schema@._window_step(l.seen, l.floor, l.target, l.pos, l.window_end, most,
                                      c.tenant);
        at_end := step.next IS NULL AND step.upto IS NULL;
        -- An idle lane is stored only if its floor can advance, not at each poll.
        EXIT WHEN at_end AND opened AND NOT borrowed AND NOT changed AND l.floor >= l.next_floor;

        changed := true;
        IF at_end THEN
            -- The window is done. A lane configured to start beyond the head keeps its floor.
            l.seen := l.target;
            l.floor := greatest(l.floor, l.next_floor);
            l.target := NULL;
            l.pos := 0;
            CONTINUE WHEN NOT opened;
            r.skipped := r.skipped OR borrowed; -- it may join the other group now
            EXIT;
        END IF;
        part := @schema@._scan_window(c, step.next, step.upto, upto, span, q.max_events, l);
        l := part.l;
        IF part.n > 0 THEN
            r.n := part.n;
            r.from_seq := part.from_seq;
            r.window_end := CASE WHEN upto > l.pos THEN upto ELSE l.window_end END;
            EXIT;
        END IF;

        -- Progress is committed after 25 ms: no timeout can stop a consumer whose filter rarely
        -- matches.
        skipped := part.met OR clock_timestamp() > until;
        r.skipped := r.skipped OR skipped;
        EXIT WHEN skipped;
        span := least(span * 4, most);
    END LOOP;
END $outbox$;

-- Leases the next events of lane l, and describes the claim in r; l is updated, to be stored if it
-- `changed`. A claim is a range of seq, (from_seq, to_seq], in a window between two snapshots, so
-- taking it over reads the same events. Finding it reads only its rows and, in steps, rows that the
-- filter rejects. r.skipped: the lane advanced without a claim: call again at once. astray: nothing
-- was done, because of _trouble. Under _lock_consumer.
--
-- head is the last seq assigned before this transaction had an xid; NULL: unknown. The claim covers
-- the group that l leads (groups.sql). To let groups meet, it ends at upto, the position of another
-- group in the same window (NULL: none), and l may borrow the window of `other`.
CREATE OR REPLACE FUNCTION @schema@._claim_fresh(
    c @schema@.consumer, q @schema@._request, head bigint, now timestamptz, upto bigint,
    other @schema@.lane, INOUT l @schema@.lane, INOUT r @schema@._answer, OUT changed boolean,
    OUT astray text) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    lease interval := q.lease_ms * interval '1 millisecond';
    members bigint := @schema@._members(l.members, l.lane);
    f record;
BEGIN
    changed := coalesce(q.ahead_lane = l.lane AND q.ahead_members = members
                        AND q.ahead_to > q.ahead_from AND q.ahead_to <= l.window_end
                        AND l.pos = q.ahead_from AND l.target::text = q.ahead_target, false);
    IF changed THEN -- the worker has read ahead from the lane's present position
        l.pos := q.ahead_to;
        IF q.ahead_n = 0 THEN -- the filter rejects all of them
            r.skipped := true;
            RETURN;
        END IF;
        r.n := q.ahead_n;
        r.from_seq := q.ahead_from;
        r.window_end := CASE WHEN upto > l.pos THEN upto ELSE l.window_end END;
    ELSE
        f := @schema@._find_fresh(c, q, head, upto, other, l, r);
        l := f.l;
        r := f.r;
        changed := f.changed;
        astray := f.astray;
        IF r.n = 0 THEN RETURN; END IF;
    END IF;

    r.epoch := @schema@._next_epoch();
    r.lane := l.lane;
    r.to_seq := l.pos;
    r.seen := l.seen;
    r.floor := l.floor;
    r.target := l.target;
    r.members := members;
    r.quiet := members = @schema@._all_lanes(c.lanes) AND r.n < q.max_events
               AND r.to_seq >= r.window_end;
    INSERT INTO @schema@.claim
    VALUES (c.name, r.epoch, l.lane, l.seen, l.floor, l.target, l.next_floor, l.window_end,
            r.from_seq, l.pos, q.owner, now + lease, lease, l.members);
END $outbox$;
