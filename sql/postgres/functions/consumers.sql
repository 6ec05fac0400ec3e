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

    -- An earlier version may have written the same patterns in another form.
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
          (register.events, register.predicate, register.retry, register.ordering, register.lanes);
    IF new_lanes THEN
        PERFORM @schema@._replace_lanes(c, lanes, l);
    END IF;
    RETURN false;
END
$outbox$;
COMMENT ON FUNCTION @schema@.register(text, text, text, text, int, text, text, text, text) IS
    'creates or updates a consumer; returns whether it is new';

-- Stops a consumer, or resumes it; events in flight are settled as usual. Returns whether it
-- exists.
CREATE OR REPLACE FUNCTION @schema@.pause(consumer text, paused boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    @include through(_operator_pause(consumer, paused))@
    -- Resuming also clears the report of why it was paused.
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
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` lists them';
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
                  HINT = format('`outbox consumers history %s` lists them', consumer);
    END IF;
    -- register checks the caller, and locks the consumer.
    PERFORM @schema@.register(s.consumer, s.events, s.predicate, s.ordering, s.lanes, policy,
                              how => 'purpose');
    RETURN s.generation;
END
$outbox$;
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
    IF NOT known OR NOT force AND dead + parked + live > 0 THEN
        RETURN;
    END IF;

    -- A trigger records deleted dead letters in `ended`, so `ended` is deleted after them.
    FOREACH tab IN ARRAY '{lane, claim, parked, dead, ended, passed, former_filter, receipt, mark,
                           setting}'::text[] LOOP
        EXECUTE format('DELETE FROM %s.%I WHERE consumer = $1', '@schema@', tab) USING consumer;
    END LOOP;
    DELETE FROM @schema@.consumer x WHERE x.name = remove.consumer;
END
$outbox$;
COMMENT ON FUNCTION @schema@.remove(text, boolean) IS 'deletes a consumer';
