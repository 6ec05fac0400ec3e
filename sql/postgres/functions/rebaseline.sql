-- rebaseline puts the outbox right after it was moved, or its event numbers began again (see
-- _trouble). Returns whether there was anything to do. Nothing is lost; some events may come again.
--
-- Moved. A lane shows nothing past its window_end, and numbers only grow. So what is not past it is
-- judged by the old cluster's snapshots, and whatever is past it is new, from either cluster. An
-- event that anybody still has to get is given a transaction number that has ended here already,
-- and that no lane has seen now; one that nobody has to get is given one that all have seen.
--
-- Strange events, in the same cluster. One whose transaction number has not begun yet, or that is
-- past all that a lane was given and still looks as if it had been seen, was written by somebody
-- with a number from elsewhere. It gets the number of this transaction.
--
-- Numbers. They go on past everything known, and new events get new ones, in their order. In the
-- same cluster it is exact which events are new: a transaction begun after a lane's snapshot has no
-- number up to its window_end. In another cluster they are those that were not surely there before:
-- a row is older than this cluster if its transaction number is higher than the row's own (xmin).
-- Where the old rows are there as files (pg_upgrade), both go on, and it is exact again.
CREATE OR REPLACE FUNCTION @schema@.rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET jit = off SET enable_seqscan = on AS $outbox$
DECLARE
    t record;
    c @schema@.consumer;
    l @schema@.lane;
    before @schema@.lane[];   -- the lanes as they came
    e record;
    head bigint;              -- the last number given out
    known bigint;             -- the highest that anybody knows
    fresh bigint;
    born timestamptz;         -- when this cluster was made
    began timestamptz;        -- when the first event with a number given again was written
    renumbered bigint := 0;
    place text;
    late xid8;
    brought bigint := 0;      -- how many strange events there were
    files boolean;            -- the rows were not rewritten on their way here
    found text;
    owner name := (SELECT pg_get_userbyid(r.relowner) FROM pg_catalog.pg_class r
                   WHERE r.oid = '@schema@.event'::regclass);
BEGIN
    -- Anybody may ask, but only the owner may put it right.
    IF NOT pg_has_role(@schema@._caller(), owner, 'USAGE') THEN
        t := @schema@._trouble();
        found := concat_ws('; ', t.moved, t.numbers, t.sequence);
        IF found = '' THEN
            RETURN false;
        END IF;
        RAISE EXCEPTION 'the outbox in schema % has to be made right first: %; '
            'role "%" may not do that', '@schema@', found, @schema@._caller()
            USING ERRCODE = 'OB006',
                  HINT = format('run `outbox status`, or SELECT %s.rebaseline(), as role "%s"; '
                                'nothing is handed out until then, and nothing is lost',
                                '@schema@', owner);
    END IF;

    -- One at a time. The lock is on a table of ours, so that no stranger can be in the way.
    LOCK TABLE @schema@.setting IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM @schema@._lock_consumer(x.name)
    FROM (SELECT y.name FROM @schema@.consumer y ORDER BY y.name) x;
    PERFORM @schema@._check_fed();
    t := @schema@._trouble();
    found := concat_ws('; ', t.moved, t.numbers, t.sequence);
    PERFORM @schema@._check_whole();

    -- Strange events. Here all events are looked at, where _trouble takes samples.
    IF @schema@._always_here()
       AND (t.sequence IS NULL OR t.moved IS NOT NULL OR t.numbers IS NOT NULL) THEN
        UPDATE @schema@.event x SET xid = DEFAULT
        WHERE x.xid >= pg_snapshot_xmax(pg_current_snapshot())
           OR EXISTS (SELECT 1
                      FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z
                      WHERE z.lane >= 0 AND x.seq > z.window_end
                        AND pg_visible_in_snapshot(x.xid, coalesce(z.target, z.seen)));
        GET DIAGNOSTICS brought = ROW_COUNT;
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

    -- The sequences.
    IF t.numbers IS NOT NULL OR t.sequence IS NOT NULL THEN
        PERFORM @schema@._lock_events(concat_ws('; ', t.moved, t.numbers, t.sequence),
                                     CASE WHEN t.numbers IS NULL THEN '200ms' ELSE '5s' END);
    END IF;
    IF t.sequence IS NOT NULL THEN
        ALTER SEQUENCE @schema@.event_seq_seq AS bigint
            INCREMENT 1 NO MINVALUE NO MAXVALUE CACHE 1 NO CYCLE;
        ALTER SEQUENCE @schema@.epoch AS bigint INCREMENT 1 NO MINVALUE NO MAXVALUE NO CYCLE;
    END IF;

    -- Claims are taken over while the numbers are as they were handed out.
    IF t.moved IS NULL THEN
        FOR c IN SELECT * FROM @schema@.consumer LOOP
            EXIT WHEN t.numbers IS NULL;
            UPDATE @schema@.claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
            PERFORM @schema@._take_over(c, 0, 2147483647, @schema@._clock(), NULL);
        END LOOP;
    END IF;

    -- Events whose numbers were given again get new ones.
    IF t.numbers IS NOT NULL OR t.moved IS NOT NULL THEN
        -- Not next_floor: where a consumer starts was said by anybody.
        SELECT greatest(max(x.seq), 0) INTO known
        FROM (SELECT max(y.window_end) AS seq FROM @schema@.lane y
              UNION ALL SELECT max(y.to_seq) FROM @schema@.claim y
              UNION ALL SELECT max(y.seq) FROM @schema@.parked y
              UNION ALL SELECT max(y.seq) FROM @schema@.dead y
              UNION ALL SELECT max(y.seq) FROM @schema@.receipt y) x;
        head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
        IF t.numbers IS NOT NULL THEN
            SELECT greatest(known, head, max(x.seq), 1) INTO fresh FROM @schema@.event x;
            PERFORM setval('@schema@.event_seq_seq', fresh);
        END IF;

        -- A cluster's identity begins with the second it was made in.
        born := to_timestamp(@schema@._home()::bigint >> 32);
        files := t.moved IS NULL
                 OR (SELECT count(DISTINCT x.xid) > 1
                            AND bool_and(x.xmin::text::bigint = x.xid::text::bigint & 4294967295)
                     FROM @schema@.event x WHERE x.created_at < born);
        SELECT min(x.created_at) INTO began FROM @schema@.event x
        WHERE x.seq <= known
          AND CASE WHEN files THEN @schema@._began_again(x.xid, x.seq)
                   WHEN x.created_at < born THEN false
                   WHEN x.xmin::text::bigint = x.xid::text::bigint & 4294967295 THEN true
                   ELSE x.seq <= head AND head < known
                        AND (x.xmin::text::bigint - x.xid::text::bigint) & 4294967295 < 2147483648
                   END;
        -- Those that were written after them, and got past what is known, must still come after
        -- them.
        FOR e IN SELECT x.seq, x.xid, x.id FROM @schema@.event x
                 WHERE began IS NOT NULL
                   AND CASE WHEN x.seq > known THEN x.created_at >= began
                            WHEN files THEN @schema@._began_again(x.xid, x.seq)
                            WHEN x.created_at < born THEN false
                            WHEN x.xmin::text::bigint = x.xid::text::bigint & 4294967295 THEN true
                            ELSE x.seq <= head AND head < known
                                 AND (x.xmin::text::bigint - x.xid::text::bigint) & 4294967295
                                     < 2147483648 END
                 ORDER BY x.seq LOOP
            IF t.numbers IS NULL AND renumbered = 0 THEN
                -- Numbers began again, and are past what is known already: not locked so far.
                PERFORM @schema@._lock_events(t.moved, '5s');
            END IF;
            UPDATE @schema@.event x SET seq = DEFAULT
            WHERE x.seq = e.seq RETURNING x.seq INTO fresh;
            renumbered := renumbered + 1;
            UPDATE @schema@.adopted_row y SET seq = fresh WHERE y.seq = e.seq;

            -- What consumers know of the event moves along. In another cluster nobody was handed
            -- any of these.
            CONTINUE WHEN t.moved IS NOT NULL;
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
    END IF;

    -- The lanes. Of a moved outbox, each goes back to the first event that it may not have handed
    -- out.
    place := @schema@._here();
    IF t.moved IS NOT NULL THEN
        late := (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8;
        FOR c IN SELECT * FROM @schema@.consumer LOOP
            UPDATE @schema@.claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
            PERFORM @schema@._take_over(c, 0, 2147483647, @schema@._clock(), NULL);
        END LOOP;
    END IF;
    SELECT array_agg(z) INTO before
    FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z;
    FOREACH l IN ARRAY coalesce(before, '{}') LOOP
        IF t.moved IS NOT NULL THEN
            SELECT least(min(x.seq) - 1, greatest(l.floor, l.window_end)) INTO l.floor
            FROM @schema@.event x
            WHERE NOT @schema@._handed_out_there(l, x.xid, x.seq);
            l.seen := concat(late, ':', late, ':');
            l.target := NULL;
            l.pos := 0;
            l.window_end := NULL; -- up to the floor there may be what only others have to get
        ELSIF renumbered > 0 AND l.window_end IS NOT NULL THEN
            -- An event with a new number may be in the window, or have been seen.
            l.window_end := pg_sequence_last_value('@schema@.event_seq_seq');
        END IF;
        l.home := place;
        PERFORM @schema@._put_lane(l);
    END LOOP;

    -- The transaction numbers of moved events, judged by the lanes as they came. 3 is the first
    -- number that any cluster gives out: every lane has seen it.
    IF t.moved IS NOT NULL THEN
        PERFORM @schema@._rebase_shown(n, '1:1:') FROM @schema@.consumer n;
        UPDATE @schema@.event x SET xid = CASE WHEN p.pending THEN late ELSE '3' END
        FROM (SELECT y.seq,
                     EXISTS (SELECT 1 FROM unnest(before) z
                             WHERE z.lane >= 0
                               AND NOT @schema@._handed_out_there(z, y.xid, y.seq)) AS pending
              FROM @schema@.event y) p
        WHERE x.seq = p.seq AND (p.pending OR x.xid >= late);
    END IF;

    -- What is of other numbers, or of events that somebody took away, which would wait for ever.
    IF t.moved IS NOT NULL OR t.numbers IS NOT NULL THEN
        DELETE FROM @schema@.passed; -- retention begins to count anew
        DELETE FROM @schema@.parked p
        WHERE NOT EXISTS (SELECT 1 FROM @schema@.event x WHERE x.seq = p.seq)
          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                          WHERE d.consumer = p.consumer AND d.seq = p.seq);
    END IF;

    -- For people to read.
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
    RAISE LOG 'outbox in schema % was made right (% events got new numbers): %',
        '@schema@', greatest(renumbered, brought), found;
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@.rebaseline() IS
    'makes the outbox right after it was moved, or its numbers began again';

-- _lock_events waits until nobody has an event that is not committed, and keeps it so. It waits for
-- as long as patience says, and then names whoever is in the way. why is for that message.
CREATE OR REPLACE FUNCTION @schema@._lock_events(why text, patience text) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    who text;
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    LOCK TABLE @schema@.event IN SHARE ROW EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    -- The locks that conflict with the one that was wanted.
    SELECT string_agg(DISTINCT coalesce('prepared transaction ' || quote_literal(p.gid),
                                        'process ' || k.pid), ', ')
    INTO who
    FROM pg_catalog.pg_locks k
    LEFT JOIN pg_catalog.pg_prepared_xacts p ON k.virtualtransaction = '-1/' || p.transaction::text
    WHERE k.relation = '@schema@.event'::regclass AND k.granted
      AND k.pid IS DISTINCT FROM pg_backend_pid()
      AND k.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
                     'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock');
    RAISE EXCEPTION 'the outbox in schema % has to be made right (%), but is in use by %',
        '@schema@', why, coalesce(who, 'others')
        USING ERRCODE = 'lock_not_available', HINT = 'it is tried again; end what is named here';
END
$outbox$;
COMMENT ON FUNCTION @schema@._lock_events(text, text) IS 'keeps everybody from emitting';

-- _handed_out_there says whether a lane that comes from another cluster was past an event. Nothing
-- past its window_end was, unless it is below the floor at which the consumer was told to start.
CREATE OR REPLACE FUNCTION @schema@._handed_out_there(l @schema@.lane, xid xid8, seq bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN seq > coalesce((l).window_end, (l).floor) THEN seq <= (l).floor
                ELSE @schema@._handed_out((l).seen, (l).floor, (l).target, (l).pos, xid, seq) END
$outbox$;
COMMENT ON FUNCTION @schema@._handed_out_there(@schema@.lane, xid8, bigint) IS
    'whether a lane was past an event in another cluster';

-- _began_again says whether an event has a number that a lane is past, though its transaction began
-- after all that the lane has seen.
CREATE OR REPLACE FUNCTION @schema@._began_again(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1
                   FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND _began_again.seq <= @schema@._reached(c, l)
                     AND _began_again.xid >= pg_snapshot_xmax(coalesce(l.target, l.seen)))
$outbox$;
COMMENT ON FUNCTION @schema@._began_again(xid8, bigint) IS
    'whether an event has a number from before it';
