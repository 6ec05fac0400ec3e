-- _put_lane makes l the current row of its lane, in place of the version it was made from. Under
-- _lock_consumer.
--
-- It inserts a row instead of updating one: the newest version is then found at the end of the
-- index, however many dead rows a long transaction keeps from being cleaned up.
CREATE OR REPLACE FUNCTION @schema@._put_lane(l @schema@.lane) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.lane
    VALUES (l.consumer, l.lane, l.version + 1, l.seen, l.floor, l.target, l.next_floor,
            l.window_end, l.pos, l.claims_from, l.delivered, l.home, l.due_from, l.leader,
            l.members, l.kept_for, l.kept_until);
    DELETE FROM @schema@.lane x
    WHERE x.consumer = l.consumer AND x.lane = l.lane AND x.version = l.version;
END
$outbox$;
COMMENT ON FUNCTION @schema@._put_lane(@schema@.lane) IS 'moves a lane on';

-- _put_lanes does the same for those of a consumer's lanes that have changed. ls and dirty are as
-- in _long_turn. What goes is found by where it is, as in _turns: a probe of the index for each.
CREATE OR REPLACE FUNCTION @schema@._put_lanes(ls @schema@.lane[], dirty boolean[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    changed int[] := array_positions(dirty, true);
BEGIN
    IF cardinality(changed) <= 2 THEN -- sooner done one by one
        FOR i IN 1 .. cardinality(changed) LOOP
            PERFORM @schema@._put_lane(ls[changed[i]]);
        END LOOP;
        RETURN;
    END IF;
    INSERT INTO @schema@.lane
    SELECT l.consumer, l.lane, l.version + 1, l.seen, l.floor, l.target, l.next_floor,
           l.window_end, l.pos, l.claims_from, l.delivered, l.home, l.due_from, l.leader,
           l.members, l.kept_for, l.kept_until
    FROM unnest(ls) l
    WHERE dirty[l.lane + 2];
    DELETE FROM @schema@.lane x
    WHERE x.ctid = ANY (ARRAY(SELECT (SELECT y.ctid FROM @schema@.lane y
                                      WHERE y.consumer = l.consumer AND y.lane = l.lane
                                        AND y.version = l.version)
                              FROM unnest(ls) l
                              WHERE dirty[l.lane + 2]));
END
$outbox$;
COMMENT ON FUNCTION @schema@._put_lanes(@schema@.lane[], boolean[]) IS
    'moves the lanes of a consumer on';
