-- _claim_fresh leases the next events of lane l to owner, up to max_events of them. n says how many
-- it claimed; 0: there are none. l comes back as it is then, and changed says whether it has to be
-- written. Under _lock_consumer.
--
-- A claim covers a range of seq, (from_seq, l.pos], in a window between two snapshots, so that
-- taking it over reads exactly the same events again. Finding the range looks at no more rows than
-- the range holds, except for those the filter passes over, which it does in steps. skipped: it
-- gave up on those for now, and the caller should come again at once.
--
-- head is the last seq given out before this transaction had a number; NULL: nobody looked.
-- If ahead_to is not 0, the caller has already read the n events in (ahead_from, ahead_to] of the
-- window ahead_target, and wants those.
-- astray says that event numbers began again below what the lane knows, or that events came from
-- elsewhere: then nothing was done (see _trouble).
--
-- l leads a group of lanes (see group.sql), and the claim covers them all. Groups should meet:
-- upto, if it is not NULL, is where another one stands in the same window, and the claim ends
-- there; other is one that stands further ahead in another window, whose target this one takes when
-- it opens one.
CREATE OR REPLACE FUNCTION @schema@._claim_fresh(
    c @schema@.consumer, INOUT l @schema@.lane, owner text, max_events int,
    lease interval, now timestamptz, head bigint,
    INOUT n int, ahead_target text, ahead_from bigint, ahead_to bigint,
    upto bigint, other @schema@.lane,
    OUT changed boolean, OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint,
    OUT astray text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    first bigint;          -- the first event of the window past l.pos
    last bigint;           -- the end of the range that is looked at
    known bigint;          -- the highest seq that the lane knows of
    passed bigint;         -- up to it no event can be new
    again boolean;         -- an unseen event has a number up to passed
    behind boolean;        -- the sequence is behind an event that exists
    strange boolean;       -- an event past what the lane knows looks as if it had been seen
    fed boolean;
    look record;
    opened boolean;
    named pg_snapshot;
    most bigint := 10000;  -- rows looked at in one step
    whole boolean := @schema@._members(l.members, l.lane) = @schema@._all_lanes(c.lanes);
    span bigint := max_events;
    borrowed boolean;
    start bigint := @schema@._starts_after(c.start_seen, c.start_floor);
    until timestamptz := clock_timestamp() + interval '25 milliseconds';
BEGIN
    changed := false;
    skipped := false;

    -- The caller has read ahead, and the lane still stands where it read from: the range is known.
    IF ahead_to > ahead_from AND ahead_to <= l.window_end
       AND l.pos = ahead_from AND l.target::text = ahead_target THEN
        from_seq := l.pos;
        l.pos := ahead_to;
        changed := true;
        IF n = 0 THEN -- the filter wants none of them
            skipped := true;
            RETURN;
        END IF;
    ELSE
        n := 0;
        IF NOT whole THEN
            span := span * c.lanes;
        END IF;
        IF c.type_like IS NOT NULL OR NOT whole OR c.tenant <> '' THEN
            -- Events that are passed over take time as well.
            span := least(span, most);
        END IF;
        LOOP
            opened := l.target IS NULL;
            borrowed := opened AND other.window_end >= coalesce(l.window_end, 0)
                        AND pg_snapshot_xmax(coalesce(other.target, other.seen))
                            > pg_snapshot_xmax(l.seen);
            borrowed := coalesce(borrowed, false);
            IF borrowed THEN
                l.target := coalesce(other.target, other.seen);
                l.next_floor := CASE WHEN other.target IS NULL THEN other.floor
                                     ELSE other.next_floor END;
                l.window_end := other.window_end;
                l.pos := 0;
                upto := CASE WHEN other.seen::text = l.seen::text THEN other.pos END;
                changed := true;
            ELSIF opened THEN
                known := l.window_end;
                passed := @schema@._reached(c, l);

                -- In this order, each with a snapshot of its own: what the target neither shows nor
                -- names as running has a seq past next_floor; what it shows is not past window_end.
                l.next_floor := coalesce(head, passed, 0);
                l.target := pg_current_snapshot();
                l.window_end := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
                l.pos := 0;

                -- A tenant's worker may not see all events, so it does not ask.
                SELECT @include unseen_and_passed(l.seen, passed)@,
                       @include shown_past_end(l.target, l.window_end)@,
                       @include seen_past_known(l.seen, known)@
                INTO again, behind, strange
                WHERE c.tenant = '';
                fed := @include is_fed()@;
                IF l.window_end < known OR behind OR again THEN
                    astray := format('event numbers began again: the last one given out is %s, '
                                     'consumer "%s" was at %s', l.window_end, c.name, known);
                    RETURN;
                ELSIF strange THEN
                    astray := format('events past %s, which consumer "%s" had reached, are of '
                                     'transactions from before that', known, c.name);
                    RETURN;
                END IF;
                IF fed THEN
                    PERFORM @schema@._check_fed();
                END IF;
            END IF;

            look := @schema@._window_look(l.seen, l.floor, l.target, l.pos, l.window_end, most,
                                          c.tenant);
            first := look.next;
            -- An idle consumer is not written at each look, but only if its floor can move on.
            EXIT WHEN first IS NULL AND look.upto IS NULL AND opened AND NOT changed
                      AND l.floor >= l.next_floor;

            IF opened AND NOT borrowed THEN
                -- Only now, because it takes a transaction number. If there are too many to name, a
                -- lower floor is still right, only slower.
                named := @schema@._name_running(l.target);
                l.target := coalesce(named, l.target);
                l.next_floor := CASE WHEN named IS NULL THEN coalesce(passed, 0)
                                     ELSE l.next_floor END;
            END IF;
            changed := true;

            IF first IS NULL AND look.upto IS NULL THEN
                -- The window holds nothing more: close it. A lane that was told to start further
                -- ahead than the head keeps its floor.
                l.seen := l.target;
                l.floor := greatest(l.floor, l.next_floor);
                l.target := NULL;
                l.pos := 0;
                EXIT WHEN opened AND NOT borrowed; -- it was a new one: there is nothing to do
                skipped := borrowed; -- it may join the other one now
                EXIT WHEN skipped;
                CONTINUE;
            END IF;

            IF upto > l.pos AND coalesce(first, look.upto) > upto THEN
                l.pos := upto; -- nothing up to the other one: it may join it now
                skipped := true;
                EXIT;
            ELSIF first IS NULL THEN
                l.pos := look.upto; -- nothing up to there
            ELSIF first <= start THEN
                l.pos := least(start, l.window_end); -- late, and from before the start
            ELSE
                last := least(first + span - 1, l.window_end);
                IF upto > l.pos THEN
                    last := least(last, upto);
                END IF;
                SELECT count(*), max(x.seq)
                INTO n, first
                FROM (SELECT w.seq
                      FROM @schema@._window_events(l.seen, l.floor, l.target, l.pos, last,
                                                   c.tenant) w
                      WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
                        AND (whole OR @schema@._is_member(l.members, l.lane,
                                 @schema@._lane_of(c.lanes, w.seq, w.aggregate_type,
                                                   w.aggregate_id)))
                      ORDER BY w.seq
                      LIMIT max_events) x;
                from_seq := l.pos;
                -- A full claim ends at its last event; otherwise the whole range was looked at.
                l.pos := CASE WHEN n < max_events THEN last ELSE first END;
                EXIT WHEN n > 0;
                span := least(span * 4, most);
            END IF;

            -- How far it got is committed, and the caller comes again at once: no time limit can
            -- stop a consumer whose filter matches rarely.
            skipped := clock_timestamp() > until;
            EXIT WHEN skipped;
        END LOOP;
    END IF;
    IF n = 0 THEN
        RETURN;
    END IF;

    skipped := false;
    epoch := @schema@._next_epoch();
    INSERT INTO @schema@.claim
    VALUES (c.name, epoch, l.lane, l.seen, l.floor, l.target, l.next_floor, l.window_end, from_seq,
            l.pos, owner, now + lease, lease, l.members);
END
$outbox$;
COMMENT ON FUNCTION @schema@._claim_fresh(@schema@.consumer, @schema@.lane, text, int, interval,
    timestamptz, bigint, int, text, bigint, bigint, bigint, @schema@.lane) IS
    'leases the next events of a lane';
