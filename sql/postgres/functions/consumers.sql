-- register makes a consumer, or brings its settings up to date. Returns whether it is new.
--
-- The filter (events, predicate) and the retry policy may change at any time. Order and lanes may
-- change only once the consumer has finished everything it has. Settings that were replaced before
-- are refused, see _replace_settings.
--
--     start_at  where a new consumer starts: 'beginning', 'end', or the first seq it wants
--     by_whom   who gives these settings, for people to read
--     how       who registers: 'start' is a worker that starts; 'again' is a worker that was
--               running already, for which a consumer that was removed meanwhile is not made
--               again; 'purpose' is an operator, who may also bring back replaced settings
CREATE OR REPLACE FUNCTION @schema@.register(
    consumer text, events text DEFAULT '', predicate text DEFAULT '', ordering text DEFAULT 'key',
    lanes int DEFAULT 1, retry text DEFAULT 'fast', start_at text DEFAULT 'beginning',
    by_whom text DEFAULT NULL, how text DEFAULT 'start') RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer; -- as it was
    l @schema@.lane;     -- as new lanes begin
    new_lanes boolean;
    made boolean;
BEGIN
    -- A caller that may not write to the tables is sent through the SECURITY DEFINER wrapper for
    -- workers, which calls this again.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_register(consumer, events, predicate, ordering, lanes, retry,
                                         start_at, by_whom, how);
    END IF;
    PERFORM @schema@._check_settings(consumer, events, predicate, ordering, lanes, retry, start_at,
                                     how);
    events := @schema@._normal_events(events);
    PERFORM @schema@._lock_consumer(consumer);
    SELECT * INTO c FROM @schema@.consumer x WHERE x.name = register.consumer;

    -- A new consumer.
    IF NOT FOUND THEN
        IF how <> 'start' THEN
            RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', consumer
                USING ERRCODE = 'OB003';
        END IF;
        made := @schema@._make_consumer(consumer, events, predicate, ordering, lanes, retry,
                                        start_at);
        IF NOT made THEN -- another session was quicker
            RETURN @schema@.register(consumer, events, predicate, ordering, lanes, retry, start_at,
                                     by_whom, how);
        END IF;
        RETURN true;
    END IF;

    -- An existing one. An earlier version may have written the same patterns in another form.
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

    -- Another order, or another number of lanes, takes new lanes. They begin where the events end
    -- now, so that has to be known before anything is changed.
    new_lanes := (c.ordering, c.lanes) IS DISTINCT FROM (register.ordering, register.lanes);
    IF new_lanes THEN
        l := @schema@._lane_at_end();
    END IF;
    IF (c.events, c.predicate) IS DISTINCT FROM (register.events, register.predicate) THEN
        PERFORM @schema@._keep_filter(c);
    END IF;
    UPDATE @schema@.consumer x
    SET events = register.events, type_like = @schema@._type_like(register.events),
        predicate = register.predicate, retry = register.retry, ordering = register.ordering,
        lanes = register.lanes
    WHERE x.name = c.name
      AND (x.events, x.predicate, x.retry, x.ordering, x.lanes) IS DISTINCT FROM
          (register.events, register.predicate, register.retry, register.ordering,
           register.lanes);
    IF new_lanes THEN
        PERFORM @schema@._replace_lanes(c, lanes, l);
    END IF;
    RETURN false;
END
$outbox$;
COMMENT ON FUNCTION @schema@.register(text, text, text, text, int, text, text, text, text) IS
    'makes a consumer, or brings it up to date; returns whether it is new';

-- pause stops a consumer, or resumes it. Events in flight end as usual. Returns whether the
-- consumer exists.
CREATE OR REPLACE FUNCTION @schema@.pause(consumer text, paused boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables is sent through the SECURITY DEFINER wrapper for
    -- operators, which calls this again.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._operator_pause(consumer, paused);
    END IF;
    -- The report of why it was paused goes with the pause.
    UPDATE @schema@.consumer c
    SET paused = pause.paused,
        report = CASE WHEN pause.paused OR c.report NOT LIKE 'paused%' THEN c.report END
    WHERE c.name = pause.consumer;
    IF FOUND AND NOT pause.paused THEN
        PERFORM @schema@._wakeup_notify_all();
        RETURN true;
    END IF;
    RETURN FOUND;
END
$outbox$;
COMMENT ON FUNCTION @schema@.pause(text, boolean) IS 'stops or resumes a consumer';

-- revert gives a consumer back settings that were replaced. generation selects them (see the table
-- setting); NULL: those that the present ones replaced. Operators may do this, workers may not.
-- Returns the generation that was brought back.
CREATE OR REPLACE FUNCTION @schema@.revert(consumer text, generation int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    s @schema@.setting;
    policy text; -- for retries; not one of the settings that generations record
BEGIN
    SELECT x.retry INTO policy FROM @schema@.consumer x WHERE x.name = revert.consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer "%"', consumer
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` lists them';
    END IF;
    -- The latest generation is the one in force, so the one before it is the second.
    SELECT * INTO s FROM @schema@.setting x
    WHERE x.consumer = revert.consumer
      AND x.generation = coalesce(revert.generation, x.generation)
    ORDER BY x.generation DESC
    OFFSET CASE WHEN revert.generation IS NULL THEN 1 ELSE 0 END LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no such settings to go back to', consumer
            USING ERRCODE = 'OB003',
                  HINT = format('`outbox consumers history %s` lists those it has', consumer);
    END IF;
    -- register checks whether the caller is allowed to do this, and locks the consumer.
    PERFORM @schema@.register(s.consumer, s.events, s.predicate, s.ordering, s.lanes, policy,
                              how => 'purpose');
    RETURN s.generation;
END
$outbox$;
COMMENT ON FUNCTION @schema@.revert(text, int) IS
    'restores replaced settings of a consumer';

-- remove deletes a consumer with everything that belongs to it. Unless forced, it does nothing
-- while the consumer has dead letters, parked events or live claims. It counts these in any case.
-- known: there is a consumer of that name.
CREATE OR REPLACE FUNCTION @schema@.remove(
    consumer text, force boolean DEFAULT false,
    OUT known boolean, OUT dead bigint, OUT parked bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables is sent through the SECURITY DEFINER wrapper for
    -- operators, which calls this again.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        SELECT r.* INTO known, dead, parked, live FROM @schema@._operator_remove(consumer, force) r;
        RETURN;
    END IF;

    -- What would be lost?
    PERFORM @schema@._lock_consumer(consumer);
    known := EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = remove.consumer);
    SELECT count(*) INTO dead FROM @schema@.dead d WHERE d.consumer = remove.consumer;
    SELECT count(*) INTO parked FROM @schema@.parked p WHERE p.consumer = remove.consumer;
    SELECT count(*) INTO live FROM @schema@.claim k
    WHERE k.consumer = remove.consumer AND k.locked_until > @schema@._clock();
    IF NOT known OR NOT force AND dead + parked + live > 0 THEN
        RETURN;
    END IF;

    -- The trigger on dead letters records them in `ended` as dropped, so `ended` comes after them.
    DELETE FROM @schema@.lane x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.claim x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.parked x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.dead x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.ended x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.passed x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.former_filter x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.receipt x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.mark x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.setting x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.consumer x WHERE x.name = remove.consumer;
END
$outbox$;
COMMENT ON FUNCTION @schema@.remove(text, boolean) IS 'deletes a consumer';
