-- retry_now gives an event that failed, and waits for its next attempt, that attempt at once. The
-- attempts it has used stay used. An event that waits behind another of its key, or for its
-- not_before, goes on waiting. Returns whether the event waited for an attempt.
CREATE OR REPLACE FUNCTION @schema@.retry_now(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    now timestamptz;
BEGIN
    -- A caller that may not write to the tables goes through the operators' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._operator_retry(consumer, seq);
    END IF;
    now := @schema@._clock() + @schema@._lock_consumer(consumer);
    PERFORM @schema@._due_since(consumer, now);
    UPDATE @schema@.parked p SET due_at = least(p.due_at, now)
    WHERE p.consumer = retry_now.consumer AND p.seq = retry_now.seq AND p.claim IS NULL
        AND p.due_at IS NOT NULL AND NOT p.delayed;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM @schema@._bell_ring_all();
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@.retry_now(text, bigint)
    IS 'gives an event its next attempt at once';
