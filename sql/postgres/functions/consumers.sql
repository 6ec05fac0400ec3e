-- Creates a consumer, or updates its settings. Returns whether it is new. Filter (events,
-- predicate) and retry policy may change at any time, order and lanes only while it has no
-- undelivered events. Settings that were replaced before are an error, see _replace_settings.
--
--     start_at  where a new consumer starts: 'beginning', 'end', or the first seq
--     by_whom   who registers it, informational
--     how       'start': a worker that starts; 'again': a running worker, for which a removed
--               consumer is not created again; 'purpose': an operator, who may also restore
--               replaced settings
CREATE OR REPLACE FUNCTION @schema@.register(
    consumer text, events text DEFAULT '', predicate text DEFAULT '', ordering text DEFAULT 'key',
    lanes int DEFAULT 1, retry text DEFAULT 'fast', start_at text DEFAULT 'beginning',
    by_whom text DEFAULT NULL, how text DEFAULT 'start') RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer; -- before the change
    l @schema@.lane;     -- the start of new lanes
    new_lanes boolean;
BEGIN
    @include through(_worker_register(consumer, events, predicate, ordering, lanes, retry, start_at,
                                      by_whom, how))@
    PERFORM @schema@._check_settings(consumer, events, predicate, ordering, lanes, retry, start_at,
                                     how);
    events := @schema@._normal_events(events);
    PERFORM @schema@._lock_consumer(consumer);
    SELECT * INTO c FROM @schema@.consumer x WHERE x.name = register.consumer;

    IF NOT FOUND THEN
        IF how <> 'start' THEN
            RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', consumer
                USING ERRCODE = 'OB003';
        END IF;
        -- Unless another session has just created the consumer.
        RETURN @schema@._make_consumer(consumer, events, predicate, ordering, lanes, retry,
                                       start_at)
            OR @schema@.register(consumer, events, predicate, ordering, lanes, retry, start_at,
                                 by_whom, how);
    END IF;

    -- The same patterns may have been written in another form.
    PERFORM @schema@._check_tenant(c);
    IF c.events <> events AND @schema@._normal_events(c.events) = events THEN
        UPDATE @schema@.consumer x SET events = register.events WHERE x.name = c.name;
        c.events := events;
    END IF;
    IF (c.events, c.predicate, c.ordering, c.lanes) IS DISTINCT FROM
       (register.events, register.predicate, register.ordering, register.lanes) THEN
        PERFORM @schema@._replace_settings(c, events, predicate, ordering, lanes,
            coalesce(left(by_whom, 1000), @schema@._caller()), how);
    END IF;

    -- New lanes begin at the present end of the events, which has to be read before any change.
    new_lanes := (c.ordering, c.lanes) IS DISTINCT FROM (register.ordering, register.lanes);
    IF new_lanes THEN l := @schema@._lane_at_end(); END IF;
    PERFORM @schema@._keep_filter(c)
    WHERE (c.events, c.predicate) IS DISTINCT FROM (register.events, register.predicate);
    UPDATE @schema@.consumer x
    SET events = register.events, type_like = @schema@._type_like(register.events),
        predicate = register.predicate, retry = register.retry, ordering = register.ordering,
        lanes = register.lanes
    WHERE x.name = c.name
      AND (x.events, x.predicate, x.retry, x.ordering, x.lanes) IS DISTINCT FROM
          (register.events, register.predicate, register.retry, register.ordering, register.lanes);
    PERFORM @schema@._replace_lanes(c, lanes, l) WHERE new_lanes;
    RETURN false;
END $outbox$;
COMMENT ON FUNCTION @schema@.register(text, text, text, text, int, text, text, text, text)
    IS 'creates or updates a consumer; returns whether it is new';

-- Stops or resumes a consumer; events in flight are settled as usual. Returns whether it exists.
CREATE OR REPLACE FUNCTION @schema@.pause(consumer text, paused boolean DEFAULT true)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    @include through(_operator_pause(consumer, paused))@
    -- Resuming also clears the report of why it was paused.
    UPDATE @schema@.consumer c
    SET paused = pause.paused,
        report = CASE WHEN pause.paused OR c.report NOT LIKE 'paused%' THEN c.report END
    WHERE c.name = pause.consumer;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM @schema@._wakeup_notify_all() WHERE NOT pause.paused;
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.pause(text, boolean) IS 'stops or resumes a consumer';

-- Restores a generation of settings (see table setting), or (NULL) those that the present ones
-- replaced, and returns it. Workers may not do this.
CREATE OR REPLACE FUNCTION @schema@.revert(consumer text, generation int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    s @schema@.setting;
    policy text; -- the retry policy, which generations do not record
BEGIN
    SELECT x.retry INTO policy FROM @schema@.consumer x WHERE x.name = revert.consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer "%"', consumer
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` lists all consumers';
    END IF;
    -- The latest generation is in force, so the previous one is the second.
    SELECT * INTO s FROM @schema@.setting x
    WHERE x.consumer = revert.consumer
      AND x.generation = coalesce(revert.generation, x.generation)
    ORDER BY x.generation DESC
    OFFSET CASE WHEN revert.generation IS NULL THEN 1 ELSE 0 END LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no such settings to restore', consumer
            USING ERRCODE = 'OB003',
                  HINT = format('`outbox consumers history %s` lists all its settings', consumer);
    END IF;
    -- register checks the caller, and locks the consumer.
    PERFORM @schema@.register(s.consumer, s.events, s.predicate, s.ordering, s.lanes, policy,
                              how => 'purpose');
    RETURN s.generation;
END $outbox$;
COMMENT ON FUNCTION @schema@.revert(text, int) IS 'restores replaced settings of a consumer';

-- Deletes a consumer with all its rows. Unless forced, it deletes nothing while the consumer has
-- dead letters, parked events or live claims, which it counts. known: the consumer exists.
CREATE OR REPLACE FUNCTION @schema@.remove(
    consumer text, force boolean DEFAULT false,
    OUT known boolean, OUT dead bigint, OUT parked bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    tab text;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN -- see wrappers.sql
        SELECT r.* INTO known, dead, parked, live FROM @schema@._operator_remove(consumer, force) r;
        RETURN;
    END IF;
    PERFORM @schema@._lock_consumer(consumer);
    known := EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = remove.consumer);
    SELECT count(*) INTO dead FROM @schema@.dead d WHERE d.consumer = remove.consumer;
    SELECT count(*) INTO parked FROM @schema@.parked p WHERE p.consumer = remove.consumer;
    SELECT count(*) INTO live FROM @schema@.claim k
    WHERE k.consumer = remove.consumer AND k.locked_until > @schema@._clock();
    IF NOT known OR NOT force AND dead + parked + live > 0 THEN RETURN; END IF;

    -- A trigger records deleted dead letters in `ended`, so `ended` is deleted after them.
    FOREACH tab IN ARRAY '{lane, claim, parked, dead, ended, passed, former_filter, receipt, mark,
                           setting}'::text[] LOOP
        EXECUTE format('DELETE FROM %s.%I WHERE consumer = $1', '@schema@', tab) USING consumer;
    END LOOP;
    DELETE FROM @schema@.consumer x WHERE x.name = remove.consumer;
END $outbox$;
COMMENT ON FUNCTION @schema@.remove(text, boolean) IS 'deletes a consumer';

-- Creates a consumer and its lanes. Returns false if another session has just created a consumer of
-- that name. The parameters are those of register, which has checked them.
CREATE OR REPLACE FUNCTION @schema@._make_consumer(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane := @schema@._lane_at_end();
    tab text;
BEGIN
    -- window_end must be an assigned seq, because rebaseline treats every event past it as new. So
    -- an explicit start leaves it NULL.
    IF start_at <> 'end' THEN
        l.seen := '1:1:'; -- a snapshot that has seen nothing
        l.floor := greatest(nullif(start_at, 'beginning')::bigint - 1, 0);
        l.window_end := NULL;
    END IF;

    INSERT INTO @schema@.consumer (name, events, type_like, predicate, ordering, lanes, retry,
                                   start_seen, start_floor, marks)
    VALUES (consumer, events, @schema@._type_like(events), predicate, ordering, lanes, retry,
            l.seen, l.floor,
            EXISTS (SELECT 1 FROM @schema@.marking m WHERE m.consumer = _make_consumer.consumer))
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- Another session has just created it, or row-level security hides it.
        IF EXISTS (SELECT 1 FROM @schema@.consumer x WHERE x.name = _make_consumer.consumer) THEN
            RETURN false;
        END IF;
        RAISE EXCEPTION 'the name "%" is taken by a consumer of another tenant', consumer
            USING ERRCODE = 'OB004', HINT = 'give the consumer another name';
    END IF;

    -- Rows left by a consumer of this name that was deleted by hand would set the position.
    FOREACH tab IN ARRAY '{lane, claim, parked, setting, passed}'::text[] LOOP
        EXECUTE format('DELETE FROM %s.%I WHERE consumer = $1', '@schema@', tab) USING consumer;
    END LOOP;

    INSERT INTO @schema@.lane
    SELECT _make_consumer.consumer, g, 1, l.seen, l.floor, NULL, NULL, l.window_end, 0, 0, 0, l.home
    FROM generate_series(-1, _make_consumer.lanes - 1) AS g;
    RETURN true;
END $outbox$;

-- A lane at the present end of the events: with seen, home (_here), floor (no transaction that
-- begins after `seen` takes a seq up to it) and window_end (no event that `seen` shows is past it).
-- An outbox in trouble is repaired first (see _trouble).
CREATE OR REPLACE FUNCTION @schema@._lane_at_end() RETURNS @schema@.lane
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane;
    trouble record;
BEGIN
    l.home := @schema@._here();
    trouble := @schema@._trouble();
    IF coalesce(trouble.moved, trouble.numbers) IS NOT NULL THEN
        PERFORM @schema@._repair_outbox(coalesce(trouble.moved, trouble.numbers));
        l.home := @schema@._here();
    ELSIF trouble.sequence IS NOT NULL THEN
        l.home := NULL;
    END IF;

    -- The order matters: first the floor is read, then the snapshot is taken, then window_end read.
    -- The floor is known only if this transaction has written nothing yet.
    l.floor := CASE WHEN pg_current_xact_id_if_assigned() IS NULL AND l.home IS NOT NULL
                    THEN coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) ELSE 0 END;
    l.seen := @schema@._name_running(pg_current_snapshot());
    IF l.seen IS NULL THEN
        l.seen := pg_current_snapshot();
        l.floor := 0;
    END IF;
    l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);

    IF l.home <> @schema@._here() THEN
        RAISE EXCEPTION 'the sequence of event numbers has just been changed: try again'
            USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN l;
END $outbox$;

-- Raises an error for invalid arguments of register.
CREATE OR REPLACE FUNCTION @schema@._check_settings(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text, how text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $outbox$
BEGIN
    IF consumer !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        RAISE EXCEPTION 'consumer name "%" is not 1 to 63 characters of A-Z a-z 0-9 _ . -', consumer
            USING ERRCODE = 'OB004';
    END IF;
    IF (ordering IN ('none', 'key', 'global') AND lanes BETWEEN 1 AND 64
        AND NOT (ordering = 'global' AND lanes > 1)) IS NOT TRUE THEN
        RAISE EXCEPTION 'ordering is none, key or global; lanes are 1 to 64, and 1 for global'
            USING ERRCODE = 'OB004';
    END IF;
    IF start_at NOT IN ('beginning', 'end') AND start_at !~ '^[0-9]{1,18}$' THEN
        RAISE EXCEPTION 'start_at "%" is not beginning, end or a seq', start_at
            USING ERRCODE = 'OB004';
    END IF;
    IF (how IN ('start', 'again', 'purpose')) IS NOT TRUE THEN
        RAISE EXCEPTION 'how "%" is not start, again or purpose', how USING ERRCODE = 'OB004';
    END IF;
    IF octet_length(events) > 65536 OR octet_length(predicate) > 65536
       OR octet_length(retry) > 1024 THEN
        RAISE EXCEPTION 'events and predicate are at most 64 KiB each, retry 1 KiB'
            USING ERRCODE = 'OB004';
    END IF;
END $outbox$;

-- Records the filter of consumer c and its positions in former_filter before the filter is
-- replaced: it applied to all events handed out so far. If no lane has moved since the last
-- replacement, nothing is recorded. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._keep_filter(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    last bigint := (SELECT max(f.n) FROM @schema@.former_filter f WHERE f.consumer = c.name);
BEGIN
    -- Snapshots have no comparison operators, so they are compared as text.
    IF NOT EXISTS (SELECT 1 FROM @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0
                     AND NOT EXISTS (
                         SELECT 1 FROM @schema@.former_filter f
                         WHERE f.consumer = c.name AND f.n = last AND f.lane = l.lane
                           AND f.lanes = c.lanes
                           AND (f.seen::text, f.floor, f.target::text, f.pos)
                               IS NOT DISTINCT FROM
                               (l.seen::text, l.floor, l.target::text, l.pos))) THEN
        RETURN;
    END IF;

    -- The epoch is the highest possible so far: claims up to it were made under this filter.
    INSERT INTO @schema@.former_filter (consumer, n, lane, lanes, events, type_like, predicate,
                                        epoch, seen, floor, target, pos, head)
    SELECT c.name, coalesce(last, 0) + 1, l.lane, c.lanes, c.events, c.type_like, c.predicate,
           (coalesce(pg_sequence_last_value('@schema@.epoch'), 0) << 20) | 1048575,
           l.seen, l.floor, l.target, l.pos,
           coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0)
    FROM @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0;
END $outbox$;

-- Records new settings of consumer c, and keeps the last 100. Settings that were replaced before
-- are refused unless restored on purpose: a worker that starts with an old configuration would
-- replace a newer filter, and events that only that one matches would be skipped. Under
-- _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._replace_settings(
    c @schema@.consumer, events text, predicate text, ordering text, lanes int,
    by_whom text, how text) RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    old @schema@.setting;  -- the generation that had these settings
    last @schema@.setting; -- the generation in force
BEGIN
    -- The first settings are recorded when they are replaced.
    INSERT INTO @schema@.setting
    SELECT c.name, 1, c.events, c.predicate, c.ordering, c.lanes, c.created_at, NULL
    WHERE NOT EXISTS (SELECT 1 FROM @schema@.setting x WHERE x.consumer = c.name);
    SELECT * INTO last FROM @schema@.setting x
    WHERE x.consumer = c.name ORDER BY x.generation DESC LIMIT 1;
    SELECT * INTO old FROM @schema@.setting x
    WHERE x.consumer = c.name
      AND (@schema@._normal_events(x.events), x.predicate, x.ordering, x.lanes) =
          (_replace_settings.events, _replace_settings.predicate, _replace_settings.ordering,
           _replace_settings.lanes);

    IF FOUND AND how <> 'purpose' THEN
        RAISE EXCEPTION 'consumer "%" was given other settings at % by %: %', c.name,
            to_char(last.since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            coalesce(left(last.by_whom, 60), 'an unknown user'),
            concat_ws(', ',
                      CASE WHEN last.events <> old.events
                           THEN format('events "%s"',
                                       coalesce(nullif(left(last.events, 60), ''), '*')) END,
                      CASE WHEN last.predicate <> old.predicate
                           THEN format('where "%s"', left(last.predicate, 60)) END,
                      CASE WHEN last.ordering <> old.ordering
                           THEN format('order %s', last.ordering) END,
                      CASE WHEN last.lanes <> old.lanes
                           THEN format('lanes %s', last.lanes) END)
            USING ERRCODE = 'OB001',
                  HINT = format('these replaced the settings requested here; to restore those: '
                                'outbox consumers revert %s --to %s', c.name, old.generation);
    END IF;

    -- Each set of settings is kept once, under its last generation.
    DELETE FROM @schema@.setting x
    WHERE x.consumer = c.name
      AND (x.generation = old.generation OR x.generation <= last.generation - 99);
    INSERT INTO @schema@.setting
    VALUES (c.name, last.generation + 1, events, predicate, ordering, lanes, @schema@._clock(),
            by_whom);
    PERFORM @schema@._wakeup_notify_all(); -- for workers that sleep with the old settings
END $outbox$;

-- Replaces the lanes of consumer c, whose order or number of lanes has changed, with `lanes` new
-- ones that begin at `l` (see _lane_at_end). c is the consumer before the change. Raises an error
-- unless the consumer has finished all events up to there, because events of one key could overtake
-- each other. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._replace_lanes(c @schema@.consumer, lanes int, l @schema@.lane)
RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    start bigint := @schema@._starts_after(c.start_seen, c.start_floor);
BEGIN
    IF (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes THEN
        PERFORM @schema@._lost_place(c);
    END IF;

    -- Is any event claimed, parked, or unread, in the open window of a lane or after it?
    IF EXISTS (SELECT 1 FROM @schema@.claim x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@.parked x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@._lanes(c.name, c.lanes) x
                  CROSS JOIN LATERAL (
                      SELECT x.seen, x.floor, x.target, greatest(x.pos, start) AS pos, x.window_end
                      WHERE x.target IS NOT NULL
                      UNION ALL
                      SELECT coalesce(x.target, x.seen),
                             CASE WHEN x.target IS NULL THEN x.floor ELSE x.next_floor END,
                             l.seen, start, 9223372036854775807) w
                  CROSS JOIN LATERAL @schema@._window_step(w.seen, w.floor, w.target, w.pos,
                                                           w.window_end, NULL, c.tenant) s
                  WHERE x.lane >= 0 AND s.next IS NOT NULL) THEN
        RAISE EXCEPTION 'consumer "%" still has undelivered events: its order and lanes can change '
            'only when it has none', c.name
            USING ERRCODE = 'OB001', HINT = 'run it with the old settings and --drain first';
    END IF;

    -- The new lanes continue from the highest version, floor and number of the old ones, and lane
    -- -1 keeps the count of delivered events.
    SELECT sum(x.delivered), greatest(l.floor, max(x.floor)),
           greatest(l.window_end, max(x.window_end)), max(x.version) + 1
    INTO l.delivered, l.floor, l.window_end, l.version
    FROM @schema@._lanes(c.name, c.lanes) x;
    DELETE FROM @schema@.lane x WHERE x.consumer = c.name;
    INSERT INTO @schema@.lane
    SELECT c.name, g, l.version, l.seen, l.floor, NULL, NULL, l.window_end, 0, 0,
           CASE g WHEN -1 THEN l.delivered ELSE 0 END, l.home
    FROM generate_series(-1, _replace_lanes.lanes - 1) AS g;
END $outbox$;

-- Records a report of a consumer's worker, for operators. While a sink stays down, report_at stays
-- at the first report, so that it shows since when.
CREATE OR REPLACE FUNCTION @schema@._report(consumer text, said text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN -- see wrappers.sql
        PERFORM @schema@._worker_report(consumer, said);
        RETURN;
    END IF;
    -- A report may quote a sink's response of any length.
    said := left(said, 4000);
    UPDATE @schema@.consumer c
    SET report = said,
        report_at = CASE WHEN c.report LIKE 'sink is down%' AND said LIKE 'sink is down%'
                         THEN c.report_at
                         ELSE @schema@._clock() END
    WHERE c.name = _report.consumer AND c.report IS DISTINCT FROM said;
END $outbox$;
