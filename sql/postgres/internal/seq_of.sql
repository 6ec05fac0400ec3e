-- _seq_of returns the seq of the event with an id, or NULL if there is none. There is no index by
-- id: it would cost every emit. But an id (UUIDv7) begins with the time it was made, and so grows
-- with seq, nearly: it is searched for by halving, then around the place where it should be. An id
-- from elsewhere, or made while a clock was wrong, may be anywhere: for that one the newest `look`
-- events are looked at; NULL: all.
CREATE OR REPLACE FUNCTION @schema@._seq_of(id uuid, look bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET jit = off AS $outbox$
DECLARE
    low bigint;    -- ids up to here are smaller,
    high bigint;   -- and from here on not, if they are in order
    middle bigint;
    at record;
    found bigint;
    around bigint;
BEGIN
    low := (SELECT e.seq FROM @schema@.event e ORDER BY e.seq LIMIT 1);
    high := (SELECT e.seq FROM @schema@.event e ORDER BY e.seq DESC LIMIT 1);
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT e.seq, e.id INTO at FROM @schema@.event e
        WHERE e.seq >= middle ORDER BY e.seq LIMIT 1;
        IF at.id < _seq_of.id THEN
            low := at.seq + 1;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    FOREACH around IN ARRAY ARRAY[1000, 100000] LOOP
        SELECT e.seq INTO found FROM @schema@.event e
        WHERE e.seq BETWEEN low - around AND low + around AND e.id = _seq_of.id;
        IF found IS NOT NULL THEN
            RETURN found;
        END IF;
    END LOOP;
    IF look IS NULL THEN
        RETURN (SELECT e.seq FROM @schema@.event e WHERE e.id = _seq_of.id LIMIT 1);
    END IF;
    -- The fence keeps the id out of the inner query, which has to end after `look` events.
    RETURN (SELECT n.seq
            FROM (SELECT e.seq, e.id FROM @schema@.event e ORDER BY e.seq DESC LIMIT look) n
            WHERE n.id = _seq_of.id LIMIT 1);
END
$outbox$;
COMMENT ON FUNCTION @schema@._seq_of(uuid, bigint) IS 'the seq of an event, by its id';
