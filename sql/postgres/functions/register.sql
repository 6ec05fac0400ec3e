-- register makes a consumer, or brings its filter and retry policy up to date. Returns whether it
-- is new. Order and lanes change only once the consumer is through with everything it has. Settings
-- that were replaced before are refused, see _replace_settings.
--
--     start_at  'beginning', 'end', or the first seq it wants
--     by_whom   who gives these settings, for people to read
--     how       'start', by a worker that starts; 'again', by one that was at work: a consumer that
--               was removed meanwhile is not made anew; 'purpose', by an operator, who may also
--               bring back settings that were replaced
CREATE OR REPLACE FUNCTION @schema@.register(
    consumer text, events text DEFAULT '', predicate text DEFAULT '', ordering text DEFAULT 'key',
    lanes int DEFAULT 1, retry text DEFAULT 'fast', start_at text DEFAULT 'beginning',
    by_whom text DEFAULT NULL, how text DEFAULT 'start') RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer;
    l @schema@.lane;
    head bigint;  -- nobody who begins after snap takes a seq up to it
    given bigint; -- nothing that snap shows is past it
    snap pg_snapshot;
    here text;
    trouble record;
BEGIN
    -- A caller that may not write to the tables goes through the workers' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_register(consumer, events, predicate, ordering, lanes, retry,
                                         start_at, by_whom, how);
    END IF;
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

    -- A consumer that is there: are these its settings, other ones, or old ones?
    events := @schema@._normal_events(events);
    PERFORM @schema@._lock_consumer(consumer);
    SELECT * INTO c FROM @schema@.consumer x WHERE x.name = register.consumer;
    IF FOUND THEN
        PERFORM @schema@._check_tenant(c);
        -- An earlier version may have written the same patterns in another form.
        IF c.events <> events AND @schema@._normal_events(c.events) = events THEN
            UPDATE @schema@.consumer x SET events = register.events WHERE x.name = c.name;
            c.events := events;
        END IF;
        IF (c.events, c.predicate, c.ordering, c.lanes) IS DISTINCT FROM
           (register.events, register.predicate, register.ordering, register.lanes) THEN
            PERFORM @schema@._replace_settings(c, events, predicate, ordering, lanes,
                coalesce(left(by_whom, 1000), @schema@._caller()), how);
        END IF;
    ELSIF how <> 'start' THEN
        RAISE EXCEPTION 'consumer "%" is not registered (any more)', consumer
            USING ERRCODE = 'OB003';
    END IF;

    -- Filter and retry policy may change at any time.
    IF c.name IS NOT NULL AND c.ordering = register.ordering AND c.lanes = register.lanes THEN
        IF (c.events, c.predicate) IS DISTINCT FROM (register.events, register.predicate) THEN
            PERFORM @schema@._keep_filter(c);
        END IF;
        UPDATE @schema@.consumer x
        SET events = register.events, type_like = @schema@._type_like(register.events),
            predicate = register.predicate, retry = register.retry
        WHERE x.name = c.name
          AND (x.events, x.predicate, x.retry) IS DISTINCT FROM
              (register.events, register.predicate, register.retry);
        RETURN false;
    END IF;

    -- Otherwise lanes are made, at the present end of the events: is this still the outbox that the
    -- others know, and where does it end?
    here := @schema@._here();
    trouble := @schema@._trouble();
    IF coalesce(trouble.moved, trouble.numbers) IS NOT NULL THEN
        PERFORM @schema@._make_right(coalesce(trouble.moved, trouble.numbers));
        here := @schema@._here();
    ELSIF trouble.sequence IS NOT NULL THEN
        here := NULL;
    END IF;
    -- For head see _claim_fresh. It is known only if this transaction has written nothing yet.
    head := CASE WHEN pg_current_xact_id_if_assigned() IS NULL AND here IS NOT NULL
                 THEN coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) ELSE 0 END;
    snap := @schema@._name_running(pg_current_snapshot());
    IF snap IS NULL THEN
        snap := pg_current_snapshot();
        head := 0;
    END IF;
    given := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    IF here <> @schema@._here() THEN
        RAISE EXCEPTION 'the sequence of event numbers was changed just now: try again'
            USING ERRCODE = 'lock_not_available';
    END IF;

    -- A new consumer.
    IF c.name IS NULL THEN
        IF start_at <> 'end' THEN
            snap := '1:1:'; -- which has seen nothing
            head := CASE start_at WHEN 'beginning' THEN 0
                                  ELSE greatest(start_at::bigint - 1, 0) END;
        END IF;
        INSERT INTO @schema@.consumer (name, events, type_like, predicate, ordering, lanes, retry,
                                       start_seen, start_floor, marks)
        VALUES (register.consumer, register.events, @schema@._type_like(register.events),
                register.predicate, register.ordering, register.lanes, register.retry, snap, head,
                EXISTS (SELECT 1 FROM @schema@.marking m WHERE m.consumer = register.consumer))
        ON CONFLICT DO NOTHING;
        -- Somebody else has made it just now, or it is there, but not for us to see.
        IF NOT FOUND AND EXISTS (SELECT 1 FROM @schema@.consumer x
                                 WHERE x.name = register.consumer) THEN
            RETURN @schema@.register(consumer, events, predicate, ordering, lanes, retry, start_at,
                                     by_whom, how);
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the name "%" is taken by a consumer of another tenant', consumer
                USING ERRCODE = 'OB004';
        END IF;

        -- If somebody deleted another consumer of this name by hand, what it left behind would
        -- become the place of this one.
        DELETE FROM @schema@.lane x WHERE x.consumer = register.consumer;
        DELETE FROM @schema@.claim x WHERE x.consumer = register.consumer;
        DELETE FROM @schema@.parked x WHERE x.consumer = register.consumer;
        DELETE FROM @schema@.setting x WHERE x.consumer = register.consumer;
        DELETE FROM @schema@.passed x WHERE x.consumer = register.consumer;
        -- window_end is a number that was really given out, never one that somebody said:
        -- rebaseline takes what is past it for new.
        INSERT INTO @schema@.lane
        SELECT register.consumer, g, 1, snap, head, NULL, NULL,
               CASE WHEN start_at = 'end' THEN given END, 0, 0, 0, here
        FROM generate_series(-1, register.lanes - 1) AS g;
        RETURN true;
    END IF;

    -- Another order, or other lanes: only for a consumer that is through, or events of one key
    -- could overtake each other. All its lanes end here, and the new ones begin here.
    IF (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes THEN
        PERFORM @schema@._lost_place(c);
    END IF;
    IF EXISTS (SELECT 1 FROM @schema@.claim x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@.parked x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@._lanes(c.name, c.lanes) x
                  WHERE x.lane >= 0
                    AND CASE WHEN x.target IS NULL
                             THEN @schema@._window_next(x.seen, x.floor, snap, 0,
                                                        9223372036854775807, c.tenant)
                             ELSE coalesce(@schema@._window_next(x.seen, x.floor, x.target, x.pos,
                                                                 x.window_end, c.tenant),
                                           @schema@._window_next(x.target, x.next_floor, snap, 0,
                                                                 9223372036854775807, c.tenant))
                        END IS NOT NULL) THEN
        RAISE EXCEPTION 'consumer "%" still has events on their way: its order and lanes can '
            'change only once it is through', c.name
            USING ERRCODE = 'OB001', HINT = 'run it with the old settings and --drain first';
    END IF;
    IF (c.events, c.predicate) IS DISTINCT FROM (register.events, register.predicate) THEN
        PERFORM @schema@._keep_filter(c);
    END IF;
    UPDATE @schema@.consumer x
    SET events = register.events, type_like = @schema@._type_like(register.events),
        predicate = register.predicate, retry = register.retry, ordering = register.ordering,
        lanes = register.lanes
    WHERE x.name = c.name;
    SELECT sum(x.delivered), greatest(head, max(x.floor)), greatest(given, max(x.window_end)),
           max(x.version) + 1
    INTO l.delivered, head, l.window_end, l.version
    FROM @schema@._lanes(c.name, c.lanes) x;
    DELETE FROM @schema@.lane x WHERE x.consumer = c.name;
    INSERT INTO @schema@.lane
    SELECT c.name, g, l.version, snap, head, NULL, NULL, l.window_end, 0, 0,
           CASE g WHEN -1 THEN l.delivered ELSE 0 END, here
    FROM generate_series(-1, register.lanes - 1) AS g;
    RETURN false;
END
$outbox$;
COMMENT ON FUNCTION @schema@.register(text, text, text, text, int, text, text, text, text) IS
    'makes a consumer, or brings it up to date; returns whether it is new';
