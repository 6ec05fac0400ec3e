-- _next_epoch returns the fence of the next claim, which grows with every call. Its lower 20 bits
-- are random. A server that lost its last moments, or one that took over from it, may give out the
-- same number of the sequence again, but not the same epoch.
CREATE OR REPLACE FUNCTION @schema@._next_epoch() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN (nextval('@schema@.epoch') << 20) | (random() * 1048575)::bigint;
COMMENT ON FUNCTION @schema@._next_epoch() IS 'the fence of the next claim';

-- _refence replaces the epoch `taken` of a claim, which is too low, by one past `last`, the highest
-- that its consumer knows, and returns that. It is called when the sequence is behind, because only
-- the tables were brought here (logical replication), somebody set the sequence back, or sessions
-- cache its numbers. The sequence goes on past `last` as well. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._refence(consumer text, taken bigint, last bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    e bigint := taken;
    wanted bigint := (last >> 20) + 1;
    at bigint;
    k @schema@.claim;
BEGIN
    LOCK TABLE @schema@.parked IN SHARE UPDATE EXCLUSIVE MODE; -- one at a time; rows stay writable

    -- A sequence that is only a little behind catches up by itself, without setval: others take
    -- numbers meanwhile. A number past 8796093022207 does not fit into the upper 43 bits.
    FOR i IN 1 .. 1000 LOOP
        EXIT WHEN e > last AND e < 9223372036854775807 - 1048576;
        at := nextval('@schema@.epoch');
        e := CASE WHEN at < 8796093022207 THEN (at << 20) | (random() * 1048575)::bigint ELSE 0 END;
    END LOOP;
    IF e <= last THEN
        PERFORM setval('@schema@.epoch', wanted + 100000);
        e := @schema@._next_epoch();
    END IF;
    IF e <= last THEN
        RAISE EXCEPTION 'the sequence @schema@.epoch does not grow' USING ERRCODE = 'OB006',
            HINT = 'as its owner: '
                   'ALTER SEQUENCE @schema@.epoch INCREMENT 1 NO MAXVALUE NO CYCLE CACHE 1';
    END IF;

    SELECT * INTO k FROM @schema@.claim x
    WHERE x.consumer = _refence.consumer AND x.epoch = taken;
    UPDATE @schema@.parked p SET claim = e WHERE p.ctid = ANY (@schema@._claimed_rows(k));
    UPDATE @schema@.claim x SET epoch = e
    WHERE x.consumer = _refence.consumer AND x.epoch = taken;
    RETURN e;
END
$outbox$;
COMMENT ON FUNCTION @schema@._refence(text, bigint, bigint) IS
    'an epoch past those that a consumer knows';
