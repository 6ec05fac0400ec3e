-- extend moves the end of a claim to lease_ms from now. Returns false if the claim is no longer the
-- worker's. A claim that has run out remains the worker's until another worker takes it over.
-- absolve: if the worker vanishes, that is not counted as an attempt of its event, because the
-- worker is being stopped, or has other such events in hand.
CREATE OR REPLACE FUNCTION @schema@.extend(
    consumer text, worker text, epoch bigint, lease_ms bigint DEFAULT 30000,
    absolve boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables goes through the workers' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_extend(consumer, worker, epoch, lease_ms, absolve);
    END IF;
    IF (lease_ms BETWEEN 1 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION 'lease_ms must be 1 to 86400000 (a day)' USING ERRCODE = 'OB004';
    END IF;
    -- Whoever is about to take the claim over must not miss this.
    PERFORM @schema@._lock_consumer(consumer);
    UPDATE @schema@.claim x
    SET locked_until = @schema@._clock() + extend.lease_ms * interval '1 millisecond',
        lease = extend.lease_ms * interval '1 millisecond',
        blamed = x.blamed AND NOT absolve
    WHERE x.consumer = extend.consumer AND x.epoch = extend.epoch AND x.owner = extend.worker;
    RETURN FOUND;
END
$outbox$;
COMMENT ON FUNCTION @schema@.extend(text, text, bigint, bigint, boolean) IS 'keeps a claim';
