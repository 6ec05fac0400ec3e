-- drop_dead gives up a dead letter for good. A letter that was sent back is on its way, and stays.
-- Returns whether there was one to drop.
CREATE OR REPLACE FUNCTION @schema@.drop_dead(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables goes through the operators' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._operator_drop(consumer, seq);
    END IF;
    DELETE FROM @schema@.dead d
    WHERE d.consumer = drop_dead.consumer AND d.seq = drop_dead.seq AND NOT d.retrying;
    RETURN FOUND;
END
$outbox$;
COMMENT ON FUNCTION @schema@.drop_dead(text, bigint) IS 'gives a dead letter up';
