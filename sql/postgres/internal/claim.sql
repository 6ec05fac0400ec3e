-- Claims: their fence, their events, and the claim of new events.

-- The fence of the next claim, which grows with every call. Its lower 20 bits are random: a server
-- that lost its last commits may assign a sequence number again, but not an epoch.
CREATE OR REPLACE FUNCTION @schema@._next_epoch() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (nextval('@schema@.epoch') << 20) | (random() * 1048575)::bigint;

-- Replaces the epoch `taken` of a claim, which is too low, by one past `last`, the highest that the
-- consumer knows. The sequence is behind if only the tables were copied here, if it was set back,
-- or if sessions cache its numbers; it is advanced, too. Under _lock_consumer.
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

-- Leases the next n events of lane l to owner, at most max_events. It updates l, which the caller
-- stores if changed. Under _lock_consumer. A claim is a range of seq, (from_seq, l.pos], in a
-- window between two snapshots, so taking it over reads the same events. Finding it reads only its
-- rows and, in steps, rows that the filter rejects. skipped: the lane advanced without a claim:
-- call again at once.
--
-- head is the last seq assigned before this transaction had an xid; NULL: unknown. If ahead_to is
-- not 0, the caller has read the n events in (ahead_from, ahead_to] of the window ahead_target, and
-- claims those. astray: nothing was done, because of _trouble.
--
-- The claim covers the group that l leads (groups.sql). To let groups meet, it ends at upto, the
-- position of another group in the same window (NULL: none); a group that opens a window takes the
-- target of other, a group further ahead.
CREATE OR REPLACE FUNCTION @schema@._claim_fresh(
    c @schema@.consumer, INOUT l @schema@.lane, owner text, max_events int,
    lease interval, now timestamptz, head bigint,
    INOUT n int, ahead_target text, ahead_from bigint, ahead_to bigint,
    upto bigint, other @schema@.lane,
    OUT changed boolean, OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint,
    OUT astray text) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    first bigint;          -- the first event of the window past l.pos
    last bigint;           -- the end of the scanned range
    known bigint;          -- the highest seq that the lane knows of
    passed bigint;         -- no event up to it can be new
    again boolean;         -- an unseen event has a seq up to passed
    behind boolean;        -- the sequence is behind an event that exists
    strange boolean;       -- an event past what the lane knows appears to have been seen
    fed boolean;
    step record;
    opened boolean;
    named pg_snapshot;
    most bigint := 10000;  -- rows scanned in one step
    whole boolean := @schema@._members(l.members, l.lane) = @schema@._all_lanes(c.lanes);
    span bigint := max_events;
    borrowed boolean;
    start bigint := @schema@._starts_after(c.start_seen, c.start_floor);
    until timestamptz := clock_timestamp() + interval '25 milliseconds';
BEGIN
    changed := false;
    skipped := false;

    -- The caller has read ahead from the lane's present position: the range is known.
    IF ahead_to > ahead_from AND ahead_to <= l.window_end
       AND l.pos = ahead_from AND l.target::text = ahead_target THEN
        from_seq := l.pos;
        l.pos := ahead_to;
        changed := true;
        IF n = 0 THEN -- the filter rejects all of them
            skipped := true;
            RETURN;
        END IF;
    ELSE
        n := 0;
        IF NOT whole THEN span := span * c.lanes; END IF;
        IF c.type_like IS NOT NULL OR NOT whole OR c.tenant <> '' THEN
            -- Reading rejected events takes time, too.
            span := least(span, most);
        END IF;
        LOOP
            opened := l.target IS NULL;
            borrowed := opened AND other.window_end >= coalesce(l.window_end, 0)
                        AND pg_snapshot_xmax(coalesce(other.target, other.seen))
                            > pg_snapshot_xmax(l.seen);
            borrowed := coalesce(borrowed, false);
            IF borrowed THEN
                l.target := coalesce(other.target, other.seen);
                l.next_floor := CASE WHEN other.target IS NULL THEN other.floor
                                     ELSE other.next_floor END;
                l.window_end := other.window_end;
                l.pos := 0;
                upto := CASE WHEN other.seen::text = l.seen::text THEN other.pos END;
                changed := true;
            ELSIF opened THEN
                known := l.window_end;
                passed := @schema@._reached(c, l);

                -- The order matters, and each statement has its own snapshot: an event that the
                -- target neither shows nor names as running has a seq past next_floor, and one that
                -- it shows is not past window_end.
                l.next_floor := coalesce(head, passed, 0);
                l.target := pg_current_snapshot();
                l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
                l.pos := 0;

                -- A tenant's worker may not see all events, so it does not ask.
                SELECT @include unseen_and_passed(l.seen, passed)@,
                       @include shown_past_end(l.target, l.window_end)@,
                       @include seen_past_known(l.seen, known)@
                INTO again, behind, strange
                WHERE c.tenant = '';
                fed := @include is_fed()@;
                IF l.window_end < known OR behind OR again THEN
                    astray := format('event numbers began again: the last one given out is %s, '
                                     'consumer "%s" was at %s', l.window_end, c.name, known);
                    RETURN;
                ELSIF strange THEN
                    astray := format('events past %s, which consumer "%s" had reached, are of '
                                     'transactions from before that', known, c.name);
                    RETURN;
                END IF;
                IF fed THEN PERFORM @schema@._check_fed(); END IF;
            END IF;

            step := @schema@._window_step(l.seen, l.floor, l.target, l.pos, l.window_end, most,
                                          c.tenant);
            first := step.next;
            -- An idle lane is stored only if its floor can advance, not at each poll.
            EXIT WHEN first IS NULL AND step.upto IS NULL AND opened AND NOT changed
                      AND l.floor >= l.next_floor;

            IF opened AND NOT borrowed THEN
                -- Not earlier, because this assigns an xid. If too many transactions are running to
                -- name them, the lower floor is still correct, only slower.
                named := @schema@._name_running(l.target);
                l.target := coalesce(named, l.target);
                l.next_floor := CASE WHEN named IS NULL THEN coalesce(passed, 0)
                                     ELSE l.next_floor END;
            END IF;
            changed := true;

            IF first IS NULL AND step.upto IS NULL THEN
                -- The window is done: close it. A lane configured to start beyond the head keeps
                -- its floor.
                l.seen := l.target;
                l.floor := greatest(l.floor, l.next_floor);
                l.target := NULL;
                l.pos := 0;
                EXIT WHEN opened AND NOT borrowed; -- the window was new, and empty
                skipped := borrowed; -- may join the other group now
                EXIT WHEN skipped;
                CONTINUE;
            END IF;

            IF upto > l.pos AND coalesce(first, step.upto) > upto THEN
                l.pos := upto; -- no event before the other group: may join it now
                skipped := true;
                EXIT;
            ELSIF first IS NULL THEN
                l.pos := step.upto; -- no event up to here
            ELSIF first <= start THEN
                l.pos := least(start, l.window_end); -- a late event from before the start
            ELSE
                last := least(first + span - 1, l.window_end);
                IF upto > l.pos THEN last := least(last, upto); END IF;
                SELECT count(*), max(x.seq) INTO n, first
                FROM (SELECT w.seq
                      FROM @schema@._window_events(l.seen, l.floor, l.target, l.pos, last,
                                                   c.tenant) w
                      WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
                        AND (whole OR @schema@._is_member(l.members, l.lane,
                                 @schema@._lane_of(c.lanes, w.seq, w.aggregate_type,
                                                   w.aggregate_id)))
                      ORDER BY w.seq LIMIT max_events) x;
                from_seq := l.pos;
                -- A full claim ends at its last event; otherwise the whole range was scanned.
                l.pos := CASE WHEN n < max_events THEN last ELSE first END;
                EXIT WHEN n > 0;
                span := least(span * 4, most);
            END IF;

            -- Progress is committed after 25 ms: no timeout can stop a consumer whose filter rarely
            -- matches.
            skipped := clock_timestamp() > until;
            EXIT WHEN skipped;
        END LOOP;
    END IF;
    IF n = 0 THEN RETURN; END IF;

    skipped := false;
    epoch := @schema@._next_epoch();
    INSERT INTO @schema@.claim
    VALUES (c.name, epoch, l.lane, l.seen, l.floor, l.target, l.next_floor, l.window_end, from_seq,
            l.pos, owner, now + lease, lease, l.members);
END $outbox$;
