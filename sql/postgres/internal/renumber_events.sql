-- _renumber_events is a part of rebaseline. It gives new numbers to the events whose numbers were
-- given before, and to those written after them, in their order. What consumers know of an event
-- moves along with it. Returns how many events got a new number.
--
-- moved and numbers are what _trouble says. If numbers is not NULL, the events are locked already,
-- and the sequence goes on past everything known.
CREATE OR REPLACE FUNCTION @schema@._renumber_events(moved text, numbers text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    e record;
    head bigint;              -- the last number given out
    known bigint;             -- the highest that anybody knows
    fresh bigint;             -- a new number
    born timestamptz;         -- when this cluster was made
    files boolean;            -- the rows were not rewritten on their way here
    began timestamptz;        -- when the first event with a number given again was written
    renumbered bigint := 0;
BEGIN
    -- Up to where do numbers count? next_floor is left out: where a consumer starts was said by
    -- anybody.
    SELECT greatest(max(x.seq), 0) INTO known
    FROM (SELECT max(y.window_end) AS seq FROM @schema@.lane y
          UNION ALL SELECT max(y.to_seq) FROM @schema@.claim y
          UNION ALL SELECT max(y.seq) FROM @schema@.parked y
          UNION ALL SELECT max(y.seq) FROM @schema@.dead y
          UNION ALL SELECT max(y.seq) FROM @schema@.receipt y) x;
    head := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    IF numbers IS NOT NULL THEN
        SELECT greatest(known, head, max(x.seq), 1) INTO fresh FROM @schema@.event x;
        PERFORM setval('@schema@.event_seq_seq', fresh);
    END IF;

    -- Which events are concerned? A cluster's identity begins with the second it was made in.
    born := to_timestamp(@schema@._home()::bigint >> 32);
    files := moved IS NULL
             OR (SELECT count(DISTINCT x.xid) > 1
                        AND bool_and(x.xmin::text::bigint = x.xid::text::bigint & 4294967295)
                 FROM @schema@.event x WHERE x.created_at < born);
    SELECT min(x.created_at) INTO began FROM @schema@.event x
    WHERE x.seq <= known
      AND CASE WHEN files THEN @schema@._began_again(x.xid, x.seq)
               ELSE @schema@._written_here(x.xmin, x.xid, x.created_at < born,
                                           x.seq <= head AND head < known) END;

    -- Those that were written after them must still come after them: those that got past what is
    -- known, and those whose numbers alone do not tell.
    FOR e IN SELECT x.seq, x.xid, x.id FROM @schema@.event x
             WHERE began IS NOT NULL
               AND CASE WHEN x.seq > known THEN x.created_at >= began
                        WHEN files THEN
                            @schema@._began_again(x.xid, x.seq)
                            OR (x.created_at >= began AND @schema@._may_be_again(x.xid, x.seq))
                        ELSE @schema@._written_here(x.xmin, x.xid, x.created_at < born,
                                                    x.seq <= head AND head < known) END
             ORDER BY x.seq LOOP
        IF numbers IS NULL AND renumbered = 0 THEN
            -- Numbers began again, and are past what is known already: not locked so far.
            PERFORM @schema@._lock_events(moved, '5s');
        END IF;
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        UPDATE @schema@.event x SET seq = DEFAULT
        WHERE x.seq = e.seq RETURNING x.seq INTO fresh;
        PERFORM set_config('outbox.change_events', '', true);
        renumbered := renumbered + 1;
        UPDATE @schema@.adopted_row y SET seq = fresh WHERE y.seq = e.seq;

        -- What consumers know of the event moves along. In another cluster nobody was handed any
        -- of these.
        CONTINUE WHEN moved IS NOT NULL;
        UPDATE @schema@.receipt y SET seq = fresh WHERE y.seq = e.seq AND y.event_id = e.id;
        UPDATE @schema@.dead y SET seq = fresh WHERE y.seq = e.seq AND y.id = e.id;
        UPDATE @schema@.parked y SET seq = fresh
        FROM @schema@.consumer n, LATERAL @schema@._lanes(n.name, n.lanes) z, @schema@.event x
        WHERE y.seq = e.seq AND n.name = y.consumer AND x.seq = fresh
          AND z.lane = @schema@._lane_of(n.lanes, e.seq, x.aggregate_type, x.aggregate_id)
          AND (pg_visible_in_snapshot(e.xid, z.seen)
               OR (z.target IS NOT NULL AND e.seq <= z.pos
                   AND pg_visible_in_snapshot(e.xid, z.target)));
    END LOOP;
    RETURN renumbered;
END
$outbox$;
COMMENT ON FUNCTION @schema@._renumber_events(text, text) IS
    'part of rebaseline: new numbers for events whose numbers were given again';

-- _written_here says, in an outbox that was moved, whether an event was written after the move.
--
--     older  the event is from before this cluster was made
--     given  its number was given out here, below one that is known
--
-- In the same cluster _began_again is exact, because a transaction begun after a lane's snapshot
-- has no number that the lane had reached; for the rest of its window see _may_be_again. In another
-- cluster new events are those that were not surely there before. A row written here has the
-- transaction number of its event (row_xmin has the lower 32 bits). If the event's number is higher
-- than the row's own, the event is older than this cluster. Where the old rows came as files
-- (pg_upgrade), both numbers go on, and _began_again is exact again.
CREATE OR REPLACE FUNCTION @schema@._written_here(
    row_xmin xid, xid xid8, older boolean, given boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT CASE WHEN older THEN false
                WHEN row_xmin::text::bigint = xid::text::bigint & 4294967295 THEN true
                ELSE given AND (row_xmin::text::bigint - xid::text::bigint) & 4294967295
                               < 2147483648 END
$outbox$;
COMMENT ON FUNCTION @schema@._written_here(xid, xid8, boolean, boolean) IS
    'whether an event was written after the outbox was moved';
