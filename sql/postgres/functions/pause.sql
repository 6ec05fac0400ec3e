-- pause stops a consumer, or resumes it. Events in flight end as usual. Returns whether the
-- consumer exists.
CREATE OR REPLACE FUNCTION @schema@.pause(consumer text, paused boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables goes through the operators' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._operator_pause(consumer, paused);
    END IF;
    -- The report of why it was paused goes with the pause.
    UPDATE @schema@.consumer c
    SET paused = pause.paused,
        report = CASE WHEN pause.paused OR c.report NOT LIKE 'paused%' THEN c.report END
    WHERE c.name = pause.consumer;
    IF FOUND AND NOT pause.paused THEN
        PERFORM @schema@._bell_ring_all();
        RETURN true;
    END IF;
    RETURN FOUND;
END
$outbox$;
COMMENT ON FUNCTION @schema@.pause(text, boolean) IS 'stops or resumes a consumer';
