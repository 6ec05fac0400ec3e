-- Repairs the outbox after it was moved to another cluster, or after its event numbers started over
-- (see _trouble). Returns whether it changed anything. Nothing is lost; some events may be
-- delivered again.
--
-- Moved: up to a lane's window_end its snapshots, from the old cluster, still show which events it
-- has handed out; all events past it are new. An event that a consumer still needs gets a
-- transaction number that has ended here and that no lane has seen, any other one that all have
-- seen.
--
-- Strange events in the same cluster: their transaction number was not assigned yet, or they are
-- past everything that a lane was shown and still appear to have been seen. They were written with
-- a number from another cluster, and get the number of this transaction.
--
-- Numbers that started over continue past every known number; new events get new numbers in their
-- order (see _renumber_events).
CREATE OR REPLACE FUNCTION @schema@.rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET jit = off SET enable_seqscan = on AS $outbox$
DECLARE
    t record;                 -- the result of _trouble
    found text;               -- the same, as one text
    brought bigint := 0;      -- how many strange events there were
    renumbered bigint := 0;   -- how many events got new numbers
BEGIN
    IF NOT @schema@._may_rebaseline() THEN
        RETURN false;
    END IF;

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

    -- Claims are taken over while their events can still be found: before events get new numbers
    -- or, if the outbox was moved, new transaction numbers.
    IF t.moved IS NULL AND t.numbers IS NOT NULL THEN
        PERFORM @schema@._take_over_all();
    END IF;
    IF t.moved IS NOT NULL OR t.numbers IS NOT NULL THEN
        renumbered := @schema@._renumber_events(t.moved, t.numbers);
    END IF;
    IF t.moved IS NOT NULL THEN
        PERFORM @schema@._take_over_all();
    END IF;
    PERFORM @schema@._rebase_lanes(t.moved IS NOT NULL, renumbered > 0);

    -- Samples refer to the old numbers. Parked events that no longer exist would wait forever.
    IF t.moved IS NOT NULL OR t.numbers IS NOT NULL THEN
        DELETE FROM @schema@.passed; -- retention starts over
        DELETE FROM @schema@.parked p
        WHERE NOT EXISTS (SELECT 1 FROM @schema@.event x WHERE x.seq = p.seq)
          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                          WHERE d.consumer = p.consumer AND d.seq = p.seq);
    END IF;

    -- A record for operators.
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
END
$outbox$;
COMMENT ON FUNCTION @schema@.rebaseline() IS
    'repairs the outbox after it was moved, or its numbers started over';

-- Whether the caller is the owner, who may repair the outbox. For other roles it raises an error if
-- a repair is needed.
CREATE OR REPLACE FUNCTION @schema@._may_rebaseline() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    owner name := @schema@._owner();
    found text;
BEGIN
    IF pg_has_role(@schema@._caller(), owner, 'USAGE') THEN
        RETURN true;
    END IF;
    SELECT concat_ws('; ', t.moved, t.numbers, t.sequence) INTO found FROM @schema@._trouble() t;
    IF found = '' THEN
        RETURN false;
    END IF;
    RAISE EXCEPTION 'the outbox in schema % has to be repaired first: %; '
        'role "%" may not do that', '@schema@', found, @schema@._caller()
        USING ERRCODE = 'OB006',
              HINT = format('run `outbox status`, or SELECT %s.rebaseline(), as role "%s"; '
                            'nothing is handed out until then, and nothing is lost',
                            '@schema@', owner);
END
$outbox$;

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
    -- Sessions with a conflicting lock.
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
END
$outbox$;

-- Whether a lane from another cluster was past an event: after its window_end, only those below the
-- floor where its consumer starts.
CREATE OR REPLACE FUNCTION @schema@._handed_out_there(l @schema@.lane, xid xid8, seq bigint)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN seq > coalesce((l).window_end, (l).floor) THEN seq <= (l).floor
                ELSE @schema@._handed_out((l).seen, (l).floor, (l).target, (l).pos, xid, seq) END
$outbox$;

-- Whether a lane is past an event's number, though the event's transaction began after all that the
-- lane has seen.
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
    SELECT EXISTS (SELECT 1
                   FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND _may_be_again.seq <= l.window_end
                     AND _may_be_again.xid >= pg_snapshot_xmax(coalesce(l.target, l.seen)))
$outbox$;
