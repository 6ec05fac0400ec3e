-- _replace_lanes gives consumer c, as it was before its order or lanes changed, `lanes` new lanes
-- that begin at `l` (see _lane_at_end). Raises an error unless the consumer has finished everything
-- up to there: events of one key could overtake each other. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._replace_lanes(c @schema@.consumer, lanes int, l @schema@.lane)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    start bigint := @schema@._starts_after(c.start_seen, c.start_floor);
BEGIN
    IF (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes THEN
        PERFORM @schema@._lost_place(c);
    END IF;

    -- Is anything claimed or parked, or still to be read: in the open window of a lane, or after
    -- it?
    IF EXISTS (SELECT 1 FROM @schema@.claim x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@.parked x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM @schema@._lanes(c.name, c.lanes) x
                  WHERE x.lane >= 0
                    AND CASE WHEN x.target IS NULL
                             THEN @schema@._window_next(x.seen, x.floor, l.seen, start,
                                                        9223372036854775807, c.tenant)
                             ELSE coalesce(@schema@._window_next(x.seen, x.floor, x.target,
                                                                 greatest(x.pos, start),
                                                                 x.window_end, c.tenant),
                                           @schema@._window_next(x.target, x.next_floor, l.seen,
                                                                 start, 9223372036854775807,
                                                                 c.tenant))
                        END IS NOT NULL) THEN
        RAISE EXCEPTION 'consumer "%" still has events on their way: its order and lanes can '
            'change only once it is through', c.name
            USING ERRCODE = 'OB001', HINT = 'run it with the old settings and --drain first';
    END IF;

    -- The new lanes count on: from the highest version, floor and number of the old ones, and
    -- lane -1 takes over what they have delivered.
    SELECT sum(x.delivered), greatest(l.floor, max(x.floor)),
           greatest(l.window_end, max(x.window_end)), max(x.version) + 1
    INTO l.delivered, l.floor, l.window_end, l.version
    FROM @schema@._lanes(c.name, c.lanes) x;
    DELETE FROM @schema@.lane x WHERE x.consumer = c.name;
    INSERT INTO @schema@.lane
    SELECT c.name, g, l.version, l.seen, l.floor, NULL, NULL, l.window_end, 0, 0,
           CASE g WHEN -1 THEN l.delivered ELSE 0 END, l.home
    FROM generate_series(-1, _replace_lanes.lanes - 1) AS g;
END
$outbox$;
COMMENT ON FUNCTION @schema@._replace_lanes(@schema@.consumer, int, @schema@.lane) IS
    'gives a consumer new lanes';
