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
