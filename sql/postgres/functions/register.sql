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
    -- A caller that may not write to the tables goes through the workers' door, and comes back
    -- here.
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
        IF NOT made THEN -- somebody else was quicker
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
