-- _shrink gives back the end of a claim that is more than its worker can hold: the events past
-- `last`. Returns false if the claim is no longer the worker's, or if `last` is not within it.
CREATE OR REPLACE FUNCTION @schema@._shrink(
    consumer text, worker text, epoch bigint, last bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    c @schema@.consumer;
    k @schema@.claim;
    l @schema@.lane;
    now timestamptz;
BEGIN
    -- A caller that may not write to the tables goes through the workers' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_shrink(consumer, worker, epoch, last);
    END IF;

    now := @schema@._clock() + @schema@._lock_consumer(consumer);
    PERFORM @schema@._due_since(consumer, now);
    SELECT * INTO c FROM @schema@.consumer x WHERE x.name = _shrink.consumer;
    SELECT * INTO k FROM @schema@.claim x
    WHERE x.consumer = _shrink.consumer AND x.epoch = _shrink.epoch AND x.owner = _shrink.worker;
    -- Parked events have no range to be in.
    IF NOT FOUND OR last < k.from_seq OR last > k.to_seq AND k.lane >= 0 THEN
        RETURN false;
    END IF;

    -- A claim of parked events is the events that carry its epoch, not a range.
    IF k.lane = -1 THEN
        UPDATE @schema@.parked p SET claim = NULL
        WHERE p.ctid = ANY (@schema@._claimed_rows(k)) AND p.seq > last;
        RETURN true;
    END IF;

    -- A claim of a lane is a range. What is past its new end is released as in a settlement.
    SELECT * INTO l FROM @schema@._places(c.name, c.lanes) x WHERE x.lane = k.lane;
    l := @schema@._release(c, l, k, last + 1, now);
    PERFORM @schema@._put_lane(l);
    UPDATE @schema@.claim x SET to_seq = last WHERE x.consumer = c.name AND x.epoch = k.epoch;
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._shrink(text, text, bigint, bigint) IS 'gives back the end of a claim';
