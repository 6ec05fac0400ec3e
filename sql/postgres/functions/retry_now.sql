-- retry_now: an event that failed and waits for its next attempt gets it at once; the attempts it
-- has used stay used. One that waits behind another of its key, or for its not_before, goes on
-- waiting. Returns whether it waited for an attempt.
CREATE OR REPLACE FUNCTION @schema@.retry_now(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._operator_retry(consumer, seq);
    END IF;
    PERFORM @schema@._lock_consumer(consumer);
    UPDATE @schema@.parked p SET due_at = least(p.due_at, @schema@._clock())
    WHERE p.consumer = retry_now.consumer AND p.seq = retry_now.seq AND p.claim IS NULL
        AND p.due_at IS NOT NULL AND NOT p.delayed;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM @schema@._bell_ring();
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@.retry_now(text, bigint)
    IS 'an event that waits for its next attempt gets it at once';
