-- _rebase_lanes is a part of rebaseline. It gives every lane the place where it is now (see _here).
--
-- If the outbox was moved, each lane goes back to the first event that it may not have handed out,
-- and the events get transaction numbers that mean something in this cluster. If events were
-- renumbered, lanes count them among those they may have seen.
CREATE OR REPLACE FUNCTION @schema@._rebase_lanes(moved boolean, renumbered boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    place text := @schema@._here();
    before @schema@.lane[] := '{}'; -- the lanes as they came
    l @schema@.lane;
    late xid8;                      -- a transaction that has ended here, and that no lane has seen
BEGIN
    late := (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8;
    FOR l IN
        SELECT z.* FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z
    LOOP
        before := before || l;
    END LOOP;
    FOREACH l IN ARRAY before LOOP
        IF moved THEN
            SELECT least(min(x.seq) - 1, greatest(l.floor, l.window_end)) INTO l.floor
            FROM @schema@.event x
            JOIN @schema@.consumer n ON n.name = l.consumer
            WHERE NOT @schema@._handed_out_there(l, x.xid, x.seq)
              AND x.seq > @schema@._starts_after(n.start_seen, n.start_floor);
            l.seen := concat(late, ':', late, ':');
            l.target := NULL;
            l.pos := 0;
            l.window_end := NULL; -- up to the floor there may be what only others have to get
        ELSIF renumbered AND l.window_end IS NOT NULL THEN
            -- An event with a new number may be in the window, or have been seen.
            l.window_end := pg_sequence_last_value('@schema@.event_seq_seq');
        END IF;
        l.home := place;
        l.due_from := NULL; -- the clock may be another one
        PERFORM @schema@._put_lane(l);
    END LOOP;

    -- The transaction numbers of moved events, judged by the lanes as they came. 3 is the first
    -- number that any cluster gives out: every lane has seen it.
    IF moved THEN
        PERFORM @schema@._rebase_shown(n, '1:1:') FROM @schema@.consumer n;
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        UPDATE @schema@.event x SET xid = CASE WHEN p.pending THEN late ELSE '3' END
        FROM (SELECT y.seq,
                     EXISTS (SELECT 1 FROM unnest(before) z
                             JOIN @schema@.consumer n ON n.name = z.consumer
                             WHERE z.lane >= 0
                               AND y.seq > @schema@._starts_after(n.start_seen,
                                                                  n.start_floor)
                               AND NOT @schema@._handed_out_there(z, y.xid, y.seq)) AS pending
              FROM @schema@.event y) p
        WHERE x.seq = p.seq AND (p.pending OR x.xid >= late);
        PERFORM set_config('outbox.change_events', '', true);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._rebase_lanes(boolean, boolean) IS
    'part of rebaseline: where lanes are now';

-- _take_over_all takes over every claim of every consumer, as if all leases had run out.
CREATE OR REPLACE FUNCTION @schema@._take_over_all() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer;
BEGIN
    FOR c IN SELECT * FROM @schema@.consumer LOOP
        UPDATE @schema@.claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
        PERFORM @schema@._take_over(c, 0, 2147483647, @schema@._clock(), NULL);
    END LOOP;
END
$outbox$;
COMMENT ON FUNCTION @schema@._take_over_all() IS 'part of rebaseline: ends all claims';
