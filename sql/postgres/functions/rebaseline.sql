-- Repairs the outbox after it was moved to another cluster, or after its event numbers restarted
-- (see _trouble). Returns whether it changed anything. Nothing is lost; some events may be
-- repeated.
--
-- Moved: up to a lane's window_end its snapshots, from the old cluster, still show which events it
-- has handed out; all past it are new. An event that a consumer still needs gets a transaction
-- number that has ended here and that no lane has seen, others one that all have seen.
--
-- Strange events in the same cluster were written with a number of another one: it was not assigned
-- yet, or they are past everything that a lane was shown and appear to have been seen. They get the
-- number of this transaction. Restarted numbers continue past every known one.
CREATE OR REPLACE FUNCTION @schema@.rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET jit = off SET enable_seqscan = on AS $outbox$
DECLARE
    t record;                 -- the result of _trouble
    found text;               -- the same, as one text
    brought bigint := 0;      -- how many strange events there were
    renumbered bigint := 0;   -- how many events got new numbers
BEGIN
    IF NOT @schema@._may_rebaseline() THEN RETURN false; END IF;

    -- Only one runs at a time. No unrelated role can lock the outbox's own table.
    LOCK TABLE @schema@.setting IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM @schema@._lock_consumer(x.name)
    FROM (SELECT y.name FROM @schema@.consumer y ORDER BY y.name) x;
    PERFORM @schema@._check_fed();
    t := @schema@._trouble();
    found := concat_ws('; ', t.moved, t.numbers, t.sequence);
    PERFORM @schema@._check_whole();

    -- Strange events, if neither meta nor a lane has recorded another cluster. This checks all
    -- events, where _trouble takes samples.
    IF (t.sequence IS NULL OR t.moved IS NOT NULL OR t.numbers IS NOT NULL)
       AND EXISTS (SELECT 1 FROM @schema@.meta m
                   WHERE m.name = 'system_identifier' AND m.value = @schema@._home())
       AND NOT EXISTS (SELECT 1
                       FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                       WHERE split_part(l.home, '/', 1) NOT IN ('?', @schema@._home())) THEN
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        UPDATE @schema@.event x SET xid = DEFAULT
        WHERE x.xid >= pg_snapshot_xmax(pg_current_snapshot())
           OR EXISTS (SELECT 1
                      FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z
                      WHERE z.lane >= 0 AND x.seq > z.window_end
                        AND pg_visible_in_snapshot(x.xid, coalesce(z.target, z.seen)));
        GET DIAGNOSTICS brought = ROW_COUNT;
        PERFORM set_config('outbox.change_events', '', true);

        t := @schema@._trouble();
        IF t.numbers IS NULL
           AND EXISTS (SELECT 1 FROM @schema@.event x
                       WHERE @schema@._began_again(x.xid, x.seq)) THEN
            t.numbers := 'event numbers were given again';
        END IF;
        found := coalesce(nullif(found, ''), t.numbers, 'events were brought here from elsewhere');
        IF brought = 0 AND t.moved IS NULL AND t.numbers IS NULL AND t.sequence IS NULL THEN
            RETURN false;
        END IF;
    ELSIF found = '' THEN
        RETURN false;
    END IF;

    IF t.numbers IS NOT NULL OR t.sequence IS NOT NULL THEN
        PERFORM @schema@._lock_events(concat_ws('; ', t.moved, t.numbers, t.sequence),
                                     CASE WHEN t.numbers IS NULL THEN '200ms' ELSE '5s' END);
    END IF;
    IF t.sequence IS NOT NULL THEN
        ALTER SEQUENCE @schema@.event_seq_seq AS bigint
            INCREMENT 1 NO MINVALUE NO MAXVALUE CACHE 1 NO CYCLE;
        ALTER SEQUENCE @schema@.epoch AS bigint INCREMENT 1 NO MINVALUE NO MAXVALUE NO CYCLE;
    END IF;

    -- Claims are taken over while their events can still be found: before events get new numbers
    -- or, if the outbox was moved, new transaction numbers.
    PERFORM @schema@._take_over_all() WHERE t.moved IS NULL AND t.numbers IS NOT NULL;
    IF t.moved IS NOT NULL OR t.numbers IS NOT NULL THEN
        renumbered := @schema@._renumber_events(t.moved, t.numbers);
    END IF;
    PERFORM @schema@._take_over_all() WHERE t.moved IS NOT NULL;
    PERFORM @schema@._rebase_lanes(t.moved IS NOT NULL, renumbered > 0);

    -- Samples refer to the old numbers. Parked events that no longer exist would wait forever.
    IF t.moved IS NOT NULL OR t.numbers IS NOT NULL THEN
        DELETE FROM @schema@.passed; -- retention starts over
        DELETE FROM @schema@.parked p
        WHERE NOT EXISTS (SELECT 1 FROM @schema@.event x WHERE x.seq = p.seq)
          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                          WHERE d.consumer = p.consumer AND d.seq = p.seq);
    END IF;

    IF t.moved IS NOT NULL THEN
        INSERT INTO @schema@.meta AS m (name, value)
        VALUES ('rebaselined_from', coalesce((SELECT value FROM @schema@.meta
                                              WHERE name = 'system_identifier'), 'unknown')),
               ('rebaselined_at', to_char(clock_timestamp() AT TIME ZONE 'UTC',
                                          'YYYY-MM-DD HH24:MI:SS "UTC"')),
               ('system_identifier', coalesce(@schema@._home(), 'unknown'))
        ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
    IF t.numbers IS NOT NULL OR renumbered > 0 OR brought > 0 THEN
        INSERT INTO @schema@.meta AS m (name, value)
        VALUES ('renumbered_at', to_char(clock_timestamp() AT TIME ZONE 'UTC',
                                         'YYYY-MM-DD HH24:MI:SS "UTC"')),
               ('renumbered_events', greatest(renumbered, brought)::text),
               ('renumbered_why', found)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
    RAISE LOG 'outbox in schema % was repaired (% events got new numbers): %',
        '@schema@', greatest(renumbered, brought), found;
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.rebaseline() IS 'repairs the outbox after it was moved';

-- Whether the caller, as the owner, may repair the outbox. Others get an error if that is needed.
CREATE OR REPLACE FUNCTION @schema@._may_rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    owner name := @schema@._owner();
    found text;
BEGIN
    IF pg_has_role(@schema@._caller(), owner, 'USAGE') THEN RETURN true; END IF;
    SELECT concat_ws('; ', t.moved, t.numbers, t.sequence) INTO found FROM @schema@._trouble() t;
    IF found = '' THEN RETURN false; END IF;
    RAISE EXCEPTION 'the outbox in schema % has to be repaired first: %; '
        'role "%" may not do that', '@schema@', found, @schema@._caller()
        USING ERRCODE = 'OB006',
              HINT = format('run `outbox status`, or SELECT %s.rebaseline(), as role "%s"; '
                            'nothing is handed out until then, and nothing is lost',
                            '@schema@', owner);
END $outbox$;

-- Waits until no transaction has uncommitted events, and prevents new ones. After `patience` it
-- raises an error that names the blocking sessions and the reason for the lock.
CREATE OR REPLACE FUNCTION @schema@._lock_events(why text, patience text) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    who text;
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    LOCK TABLE @schema@.event IN SHARE ROW EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    SELECT string_agg(DISTINCT coalesce('prepared transaction ' || quote_literal(p.gid),
                                        'process ' || k.pid), ', ')
    INTO who
    FROM pg_catalog.pg_locks k
    LEFT JOIN pg_catalog.pg_prepared_xacts p ON k.virtualtransaction = '-1/' || p.transaction::text
    WHERE k.relation = '@schema@.event'::regclass AND k.granted
      AND k.pid IS DISTINCT FROM pg_backend_pid()
      AND k.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
                     'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock');
    RAISE EXCEPTION 'the outbox in schema % has to be repaired (%), but is in use by %',
        '@schema@', why, coalesce(who, 'other sessions')
        USING ERRCODE = 'lock_not_available',
              HINT = 'end the named sessions or transactions; workers try again automatically';
END $outbox$;

-- Whether a lane from another cluster was past an event: after its window_end, those below its
-- floor.
CREATE OR REPLACE FUNCTION @schema@._handed_out_there(l @schema@.lane, xid xid8, seq bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN seq > coalesce((l).window_end, (l).floor) THEN seq <= (l).floor
                ELSE @schema@._handed_out((l).seen, (l).floor, (l).target, (l).pos, xid, seq) END
$outbox$;

-- Whether a lane is past an event's number, though its transaction began after all that it has
-- seen.
CREATE OR REPLACE FUNCTION @schema@._began_again(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1
                   FROM @schema@.consumer c, LATERAL @schema@._places(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND l.leader IS NULL -- other lanes share their leader's place
                     AND _began_again.seq <= @schema@._reached(c, l)
                     AND _began_again.xid >= pg_snapshot_xmax(coalesce(l.target, l.seen)))
$outbox$;

-- Whether an event's number may have been assigned before: it is in the last window of a lane, and
-- its transaction began after that, or took the number while the window was being opened.
CREATE OR REPLACE FUNCTION @schema@._may_be_again(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1 FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND _may_be_again.seq <= l.window_end
                     AND _may_be_again.xid >= pg_snapshot_xmax(coalesce(l.target, l.seen)))
$outbox$;

-- Records the present place in every lane. If the outbox was moved, each lane moves back to the
-- first event that it may not have handed out, and events get transaction numbers of this cluster.
CREATE OR REPLACE FUNCTION @schema@._rebase_lanes(moved boolean, renumbered boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    place text := @schema@._here();
    before @schema@.lane[] := '{}'; -- the lanes as they were
    l @schema@.lane;
    late xid8;                      -- a transaction that has ended here, and that no lane has seen
BEGIN
    late := (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8;
    FOR l IN SELECT z.* FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z LOOP
        before := before || l;
    END LOOP;
    FOREACH l IN ARRAY before LOOP
        IF moved THEN
            SELECT least(min(x.seq) - 1, greatest(l.floor, l.window_end)) INTO l.floor
            FROM @schema@.event x JOIN @schema@.consumer n ON n.name = l.consumer
            WHERE NOT @schema@._handed_out_there(l, x.xid, x.seq)
              AND x.seq > @schema@._starts_after(n.start_seen, n.start_floor);
            l.seen := concat(late, ':', late, ':');
            l.target := NULL;
            l.pos := 0;
            l.window_end := NULL; -- only other consumers may need events up to the floor
        ELSIF renumbered AND l.window_end IS NOT NULL THEN
            -- An event with a new number may be in the window, or have been seen.
            l.window_end := pg_sequence_last_value('@schema@.event_seq_seq');
        END IF;
        l.home := place;
        l.due_from := NULL; -- this server's clock may differ
        PERFORM @schema@._put_lane(l);
    END LOOP;

    -- The former lanes decide which transaction numbers moved events get. 3 is the first number
    -- that any cluster assigns: every lane has seen it.
    IF moved THEN
        PERFORM @schema@._rebase_shown(n) FROM @schema@.consumer n;
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        UPDATE @schema@.event x SET xid = CASE WHEN p.pending THEN late ELSE '3' END
        FROM (SELECT y.seq,
                     EXISTS (SELECT 1 FROM unnest(before) z
                             JOIN @schema@.consumer n ON n.name = z.consumer
                             WHERE z.lane >= 0
                               AND y.seq > @schema@._starts_after(n.start_seen, n.start_floor)
                               AND NOT @schema@._handed_out_there(z, y.xid, y.seq)) AS pending
              FROM @schema@.event y) p
        WHERE x.seq = p.seq AND (p.pending OR x.xid >= late);
        PERFORM set_config('outbox.change_events', '', true);
    END IF;
END $outbox$;

-- Takes over every claim of every consumer, as if all leases had expired.
CREATE OR REPLACE FUNCTION @schema@._take_over_all() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer;
BEGIN
    FOR c IN SELECT * FROM @schema@.consumer LOOP
        UPDATE @schema@.claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
        PERFORM @schema@._take_over(c, 0, 2147483647, @schema@._clock(), NULL);
    END LOOP;
END $outbox$;

-- Updates where a consumer started, and which events its former filters covered. Snapshots of the
-- old cluster mean nothing here: one that has seen nothing, a floor, and a list of the covered
-- events past it replace them. Called between the moves of lanes and of events.
CREATE OR REPLACE FUNCTION @schema@._rebase_shown(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f @schema@.former_filter;
    first bigint;  -- the first event that was not covered
    also bigint[]; -- the events past it that were
    low bigint := (SELECT min(l.floor) FROM @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0);
BEGIN
    SELECT min(e.seq) INTO first FROM @schema@.event e
    WHERE NOT @schema@._before_start(c.start_seen, c.start_floor, c.start_also, e.xid, e.seq);
    first := coalesce(first, greatest((SELECT max(e.seq) FROM @schema@.event e), c.start_floor) + 1,
                      1);
    SELECT array_agg(e.seq) INTO also
    FROM @schema@.event e JOIN @schema@._lanes(c.name, c.lanes) l
      ON l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)
    WHERE e.seq > first AND e.seq <= l.floor
      AND @schema@._before_start(c.start_seen, c.start_floor, c.start_also, e.xid, e.seq);
    UPDATE @schema@.consumer x
    SET start_seen = '1:1:', start_floor = least(first - 1, low), start_also = also
    WHERE x.name = c.name;

    -- The events that each former filter covered, lane by lane.
    FOR f IN SELECT * FROM @schema@.former_filter x WHERE x.consumer = c.name LOOP
        SELECT min(e.seq) INTO first FROM @schema@.event e
        WHERE @schema@._lane_of(f.lanes, e.seq, e.aggregate_type, e.aggregate_id) = f.lane
          AND NOT @schema@._handed_out(f.seen, f.floor, f.target, f.pos, e.xid, e.seq);
        first := coalesce(first, f.head + 1);
        SELECT array_agg(e.seq) INTO also
        FROM @schema@.event e JOIN @schema@._lanes(c.name, c.lanes) l
          ON l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)
        WHERE e.seq > first AND e.seq <= l.floor
          AND @schema@._lane_of(f.lanes, e.seq, e.aggregate_type, e.aggregate_id) = f.lane
          AND (@schema@._handed_out(f.seen, f.floor, f.target, f.pos, e.xid, e.seq)
               OR e.seq = ANY (f.also));
        UPDATE @schema@.former_filter x
        SET seen = '1:1:', floor = least(first - 1, low), target = NULL, pos = 0,
            also = _rebase_shown.also
        WHERE x.consumer = f.consumer AND x.n = f.n AND x.lane = f.lane;
    END LOOP;

    -- Events past the floor of their lane are handed out again: their recorded ends are void.
    DELETE FROM @schema@.ended x USING @schema@.event e, @schema@._lanes(c.name, c.lanes) l
    WHERE x.consumer = c.name AND e.seq = x.seq AND e.seq > l.floor
      AND l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id);
END $outbox$;

-- Assigns new numbers to the events whose numbers were used before, and to later ones, in their
-- order, also in the records of consumers. Returns how many. moved and numbers are as in _trouble.
-- If numbers is not NULL, the events are already locked, and the sequence continues past every
-- known number.
CREATE OR REPLACE FUNCTION @schema@._renumber_events(moved text, numbers text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    e record;
    head bigint;              -- the last number assigned
    known bigint;             -- the highest known to any lane
    fresh bigint;             -- a new number
    born timestamptz;         -- when this cluster was made
    files boolean;            -- the rows were not rewritten on their way here
    began timestamptz;        -- when the first event with a reused number was written
    renumbered bigint := 0;
BEGIN
    -- The highest number known, without next_floor: any role may have chosen a consumer's start.
    SELECT greatest(max(x.seq), 0) INTO known
    FROM (SELECT max(y.window_end) AS seq FROM @schema@.lane y
          UNION ALL SELECT max(y.to_seq) FROM @schema@.claim y
          UNION ALL SELECT max(y.seq) FROM @schema@.parked y
          UNION ALL SELECT max(y.seq) FROM @schema@.dead y
          UNION ALL SELECT max(y.seq) FROM @schema@.receipt y) x;
    head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    IF numbers IS NOT NULL THEN
        SELECT greatest(known, head, max(x.seq), 1) INTO fresh FROM @schema@.event x;
        PERFORM setval('@schema@.event_seq_seq', fresh);
    END IF;

    -- Which events are concerned? A cluster's identity begins with the second of its creation.
    born := to_timestamp(@schema@._home()::bigint >> 32);
    files := moved IS NULL
             OR (SELECT count(DISTINCT x.xid) > 1
                        AND bool_and(x.xmin::text::bigint = x.xid::text::bigint & 4294967295)
                 FROM @schema@.event x WHERE x.created_at < born);
    SELECT min(x.created_at) INTO began FROM @schema@.event x
    WHERE x.seq <= known
      AND CASE WHEN files THEN @schema@._began_again(x.xid, x.seq)
               ELSE @schema@._written_here(x.xmin, x.xid, x.created_at < born,
                                           x.seq <= head AND head < known) END;

    -- Events written later must stay behind them: those past the known numbers, and those whose
    -- order the numbers alone do not determine.
    FOR e IN SELECT x.seq, x.xid, x.id FROM @schema@.event x
             WHERE began IS NOT NULL
               AND CASE WHEN x.seq > known THEN x.created_at >= began
                        WHEN files THEN @schema@._began_again(x.xid, x.seq)
                             OR (x.created_at >= began AND @schema@._may_be_again(x.xid, x.seq))
                        ELSE @schema@._written_here(x.xmin, x.xid, x.created_at < born,
                                                    x.seq <= head AND head < known) END
             ORDER BY x.seq LOOP
        IF numbers IS NULL AND renumbered = 0 THEN
            -- Numbers are past the known ones already: the events are not locked yet.
            PERFORM @schema@._lock_events(moved, '5s');
        END IF;
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        UPDATE @schema@.event x SET seq = DEFAULT WHERE x.seq = e.seq RETURNING x.seq INTO fresh;
        PERFORM set_config('outbox.change_events', '', true);
        renumbered := renumbered + 1;
        UPDATE @schema@.adopted_row y SET seq = fresh WHERE y.seq = e.seq;

        -- The consumers' records. In another cluster no consumer was handed any of these events.
        CONTINUE WHEN moved IS NOT NULL;
        UPDATE @schema@.receipt y SET seq = fresh WHERE y.seq = e.seq AND y.event_id = e.id;
        UPDATE @schema@.dead y SET seq = fresh WHERE y.seq = e.seq AND y.id = e.id;
        UPDATE @schema@.parked y SET seq = fresh
        FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z, @schema@.event x
        WHERE y.seq = e.seq AND n.name = y.consumer AND x.seq = fresh
          AND z.lane = @schema@._lane_of(n.lanes, e.seq, x.aggregate_type, x.aggregate_id)
          AND (pg_visible_in_snapshot(e.xid, z.seen)
               OR (z.target IS NOT NULL AND e.seq <= z.pos
                   AND pg_visible_in_snapshot(e.xid, z.target)));
    END LOOP;
    RETURN renumbered;
END $outbox$;

-- For an outbox that was moved, whether an event was written after the move. older: it is from
-- before this cluster was made. given: its number was assigned here, below one that is known.
--
-- In the same cluster _began_again is exact, because a transaction begun after a lane's snapshot
-- has no number that the lane had reached; for the rest of its window see _may_be_again. In another
-- one an event is new unless it surely existed before. A row written here has the transaction
-- number of its event (row_xmin has the lower 32 bits); if the event's is higher, it is older than
-- this cluster. If rows were moved as files (pg_upgrade), both continue, and _began_again is exact
-- again.
CREATE OR REPLACE FUNCTION @schema@._written_here(
    row_xmin xid, xid xid8, older boolean, given boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT CASE WHEN older THEN false
                WHEN row_xmin::text::bigint = xid::text::bigint & 4294967295 THEN true
                ELSE given AND (row_xmin::text::bigint - xid::text::bigint) & 4294967295
                               < 2147483648 END
$outbox$;
