-- _make_consumer makes a consumer and its lanes. Returns false if somebody else has made one of
-- that name meanwhile. The parameters are those of register, which has checked them.
CREATE OR REPLACE FUNCTION @schema@._make_consumer(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane := @schema@._lane_at_end();
BEGIN
    -- window_end must be a number that was really given out, because rebaseline takes whatever is
    -- past it for new. So a start that somebody names leaves it open.
    IF start_at <> 'end' THEN
        l.seen := '1:1:'; -- a snapshot that has seen nothing
        l.floor := CASE start_at WHEN 'beginning' THEN 0
                                 ELSE greatest(start_at::bigint - 1, 0) END;
        l.window_end := NULL;
    END IF;

    INSERT INTO @schema@.consumer (name, events, type_like, predicate, ordering, lanes, retry,
                                   start_seen, start_floor, marks)
    VALUES (_make_consumer.consumer, _make_consumer.events,
            @schema@._type_like(_make_consumer.events), _make_consumer.predicate,
            _make_consumer.ordering, _make_consumer.lanes, _make_consumer.retry, l.seen, l.floor,
            EXISTS (SELECT 1 FROM @schema@.marking m WHERE m.consumer = _make_consumer.consumer))
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- Somebody else has made it just now; or it exists, and row-level security hides it.
        IF EXISTS (SELECT 1 FROM @schema@.consumer x WHERE x.name = _make_consumer.consumer) THEN
            RETURN false;
        END IF;
        RAISE EXCEPTION 'the name "%" is taken by a consumer of another tenant', consumer
            USING ERRCODE = 'OB004', HINT = 'give the consumer another name';
    END IF;

    -- If somebody deleted an earlier consumer of this name by hand, what it left behind would
    -- become the place of this one.
    DELETE FROM @schema@.lane x WHERE x.consumer = _make_consumer.consumer;
    DELETE FROM @schema@.claim x WHERE x.consumer = _make_consumer.consumer;
    DELETE FROM @schema@.parked x WHERE x.consumer = _make_consumer.consumer;
    DELETE FROM @schema@.setting x WHERE x.consumer = _make_consumer.consumer;
    DELETE FROM @schema@.passed x WHERE x.consumer = _make_consumer.consumer;

    INSERT INTO @schema@.lane
    SELECT _make_consumer.consumer, g, 1, l.seen, l.floor, NULL, NULL, l.window_end, 0, 0, 0, l.home
    FROM generate_series(-1, _make_consumer.lanes - 1) AS g;
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._make_consumer(text, text, text, text, int, text, text) IS
    'makes a consumer and its lanes';

-- _lane_at_end returns a lane that stands where the events end now. Only seen, floor, window_end
-- and home are set:
--
--     seen        the snapshot: whatever it shows is behind the lane
--     floor       nobody who begins after that snapshot takes a seq up to this one
--     window_end  the last seq given out: nothing that the snapshot shows is past it
--     home        see _here
--
-- An outbox that is no longer the one its lanes know is put right first (see _trouble).
CREATE OR REPLACE FUNCTION @schema@._lane_at_end() RETURNS @schema@.lane
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane;
    trouble record;
BEGIN
    l.home := @schema@._here();
    trouble := @schema@._trouble();
    IF coalesce(trouble.moved, trouble.numbers) IS NOT NULL THEN
        PERFORM @schema@._make_right(coalesce(trouble.moved, trouble.numbers));
        l.home := @schema@._here();
    ELSIF trouble.sequence IS NOT NULL THEN
        l.home := NULL;
    END IF;

    -- The order of these three counts: the floor is read before the snapshot is taken, and
    -- window_end after it. For the floor see also _claim_fresh: it is known only if this
    -- transaction has written nothing yet.
    l.floor := CASE WHEN pg_current_xact_id_if_assigned() IS NULL AND l.home IS NOT NULL
                    THEN coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) ELSE 0 END;
    l.seen := @schema@._name_running(pg_current_snapshot());
    IF l.seen IS NULL THEN
        l.seen := pg_current_snapshot();
        l.floor := 0;
    END IF;
    l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);

    IF l.home <> @schema@._here() THEN
        RAISE EXCEPTION 'the sequence of event numbers was changed just now: try again'
            USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN l;
END
$outbox$;
COMMENT ON FUNCTION @schema@._lane_at_end() IS 'a lane that stands where the events end';
