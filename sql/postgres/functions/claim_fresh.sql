-- claim_fresh: leases the next events of lane l; n = 0: there are none. Gives l as it is then, and whether it changed.
-- A claim covers a range of seq, so taking it over reads exactly the same events again. Finding the range looks at no
-- more rows than it holds, but for what the filter passes over; `skipped` says that it gave up on those for now.
-- head is the last seq given out when this transaction had no number yet; NULL: nobody looked.
-- ahead_to <> 0: the caller has read the n events (ahead_from, ahead_to] of the window already, and wants those.
-- Under lock_consumer.
CREATE OR REPLACE FUNCTION @schema@.claim_fresh(c @schema@.consumer, INOUT l @schema@.lane, owner text, max_events int,
                                                lease interval, now timestamptz, head bigint, INOUT n int, ahead_target text,
                                                ahead_from bigint, ahead_to bigint, OUT changed boolean,
                                                OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    first bigint;
    last bigint;
    opened boolean;
    named pg_snapshot;
    span bigint := max_events::bigint * c.lanes;
BEGIN
    changed := false;
    skipped := false;
    IF ahead_to > 0 AND l.pos = ahead_from AND l.target::text = ahead_target THEN
        from_seq := l.pos;
        l.pos := ahead_to;
        changed := true;
        IF n = 0 THEN
            skipped := true;
            RETURN;
        END IF;
    ELSE
        n := 0;
        FOR turn IN 1 .. 10 LOOP
            opened := l.target IS NULL;
            IF opened THEN
                -- In this order, each with a snapshot of its own: what the target neither shows nor names as running
                -- has a seq past next_floor; what it shows is not past window_end.
                l.next_floor := coalesce(head, l.floor);
                l.target := pg_current_snapshot();
                l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
                l.pos := 0;
            END IF;
            first := @schema@.window_next(l.seen, l.floor, l.target, l.pos, l.window_end);
            -- An idle consumer is not written for each look at it: only if there is something to forget.
            EXIT WHEN first IS NULL AND opened AND NOT changed AND l.floor >= l.next_floor;
            IF opened THEN -- only now: it takes a transaction number
                named := @schema@.name_running(l.target);
                l.target := coalesce(named, l.target);
                l.next_floor := CASE WHEN named IS NULL THEN l.floor ELSE l.next_floor END; -- still right, only slower
            END IF;
            IF first IS NULL THEN -- through
                l.seen := l.target;
                -- One that was told to start further ahead than the head stays there.
                l.floor := greatest(l.floor, l.next_floor);
                l.target := NULL;
                l.pos := 0;
                changed := true;
                EXIT WHEN opened;
                CONTINUE;
            END IF;
            last := least(first + span - 1, l.window_end);
            SELECT count(*), max(x.seq) INTO n, first
            FROM (SELECT w.seq FROM @schema@.window_events(l.seen, l.floor, l.target, l.pos, last) w
                  WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
                    AND @schema@.lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id) = l.lane
                  ORDER BY w.seq LIMIT max_events) x;
            from_seq := l.pos;
            l.pos := CASE WHEN n < max_events THEN last ELSE first END;
            changed := true;
            EXIT WHEN n > 0;
            span := least(span * 4, 100000);
            skipped := turn = 10;
        END LOOP;
    END IF;
    IF n = 0 THEN
        RETURN;
    END IF;
    skipped := false;
    epoch := @schema@.next_epoch();
    INSERT INTO @schema@.claim VALUES (c.name, epoch, l.lane, l.seen, l.floor, l.target, l.next_floor, l.window_end, from_seq,
                                       l.pos, owner, now + lease, lease);
END
$outbox$;
COMMENT ON FUNCTION @schema@.claim_fresh(@schema@.consumer, @schema@.lane, text, int, interval, timestamptz, bigint, int,
    text, bigint, bigint) IS 'leases the next events of a lane';
