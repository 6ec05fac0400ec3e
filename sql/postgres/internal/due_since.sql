-- _due_since returns the time from which on to look for parked events of a consumer: lane.due_from.
-- It is called before any of them is given a time, which is never before now. If now is before
-- due_from, because the clock was set back, due_from is forgotten. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._due_since(consumer text, now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane;
BEGIN
    SELECT * INTO l FROM @schema@.lane x
    WHERE x.consumer = _due_since.consumer AND x.lane = -1
    ORDER BY x.version DESC LIMIT 1;
    IF l.due_from > now THEN
        l.due_from := NULL;
        PERFORM @schema@._put_lane(l);
    END IF;
    RETURN coalesce(l.due_from, '-infinity');
END
$outbox$;
COMMENT ON FUNCTION @schema@._due_since(text, timestamptz) IS
    'from when on to look for parked events by their time';

-- _first_due returns the first time that a parked event has, whether it is in a claim or not; NULL:
-- none is parked. It sees to it that the index is the one that is meant: see _parked_rows.
CREATE OR REPLACE FUNCTION @schema@._first_due(consumer text, since timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $outbox$
BEGIN
    RETURN @include first_due($1, since)@;
END
$outbox$;
COMMENT ON FUNCTION @schema@._first_due(text, timestamptz) IS
    'the first time that a parked event has';
