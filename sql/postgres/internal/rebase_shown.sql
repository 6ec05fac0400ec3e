-- _rebase_shown is a part of rebaseline. It keeps what is shown of a consumer true: where it
-- started, and what its former filters covered. Snapshots of the old cluster mean nothing here. So
-- what they covered is described by a floor and, past the floor, event by event. Events that will
-- be handed out again are no longer covered. snap is the snapshot to put in place of the old ones.
--
-- It is called after the lanes have moved, and before events get their new transaction numbers.
CREATE OR REPLACE FUNCTION @schema@._rebase_shown(c @schema@.consumer, snap pg_snapshot)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    f @schema@.former_filter;
    first bigint;  -- the first event that was not covered
    also bigint[]; -- those past it that were
BEGIN
    -- Where the consumer started.
    SELECT min(e.seq) INTO first FROM @schema@.event e
    WHERE NOT @schema@._before_start(c.start_seen, c.start_floor, c.start_also, e.xid, e.seq);
    first := coalesce(first,
                      greatest((SELECT max(e.seq) FROM @schema@.event e), c.start_floor) + 1,
                      1);
    SELECT array_agg(e.seq) INTO also
    FROM @schema@.event e
    JOIN @schema@._lanes(c.name, c.lanes) l
      ON l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)
    WHERE e.seq > first AND e.seq <= l.floor
      AND @schema@._before_start(c.start_seen, c.start_floor, c.start_also, e.xid, e.seq);
    UPDATE @schema@.consumer x
    SET start_seen = snap,
        start_floor = least(first - 1, (SELECT min(l.floor)
                                        FROM @schema@._lanes(c.name, c.lanes) l
                                        WHERE l.lane >= 0)),
        start_also = also
    WHERE x.name = c.name;

    -- What each former filter covered, lane by lane.
    FOR f IN SELECT * FROM @schema@.former_filter x WHERE x.consumer = c.name LOOP
        SELECT min(e.seq) INTO first FROM @schema@.event e
        WHERE @schema@._lane_of(f.lanes, e.seq, e.aggregate_type, e.aggregate_id) = f.lane
          AND NOT @schema@._handed_out(f.seen, f.floor, f.target, f.pos, e.xid, e.seq);
        first := coalesce(first, f.head + 1);
        SELECT array_agg(e.seq) INTO also
        FROM @schema@.event e
        JOIN @schema@._lanes(c.name, c.lanes) l
          ON l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)
        WHERE e.seq > first AND e.seq <= l.floor
          AND @schema@._lane_of(f.lanes, e.seq, e.aggregate_type, e.aggregate_id) = f.lane
          AND (@schema@._handed_out(f.seen, f.floor, f.target, f.pos, e.xid, e.seq)
               OR e.seq = ANY (f.also));
        UPDATE @schema@.former_filter x
        SET seen = snap,
            floor = least(first - 1, (SELECT min(l.floor)
                                      FROM @schema@._lanes(c.name, c.lanes) l
                                      WHERE l.lane >= 0)),
            target = NULL, pos = 0, also = _rebase_shown.also
        WHERE x.consumer = f.consumer AND x.n = f.n AND x.lane = f.lane;
    END LOOP;

    -- How single events ended: those past the floor of their lane are handed out again.
    DELETE FROM @schema@.ended x USING @schema@.event e, @schema@._lanes(c.name, c.lanes) l
    WHERE x.consumer = c.name AND e.seq = x.seq AND e.seq > l.floor
      AND l.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id);
END
$outbox$;
COMMENT ON FUNCTION @schema@._rebase_shown(@schema@.consumer, pg_snapshot) IS
    'part of rebaseline: what is shown stays true';
