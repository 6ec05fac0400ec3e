-- revert gives a consumer back settings that were replaced. generation says which (see the table
-- setting); NULL: those that the present ones replaced. Operators may do this, workers may not.
-- Returns the generation that was brought back.
CREATE OR REPLACE FUNCTION @schema@.revert(consumer text, generation int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    s @schema@.setting;
    policy text; -- for retries; not one of the settings that generations record
BEGIN
    SELECT x.retry INTO policy FROM @schema@.consumer x WHERE x.name = revert.consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer "%"', consumer
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` lists them';
    END IF;
    -- The latest generation is the one in force, so the one before it is the second.
    SELECT * INTO s FROM @schema@.setting x
    WHERE x.consumer = revert.consumer
      AND x.generation = coalesce(revert.generation, x.generation)
    ORDER BY x.generation DESC
    OFFSET CASE WHEN revert.generation IS NULL THEN 1 ELSE 0 END LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no such settings to go back to', consumer
            USING ERRCODE = 'OB003',
                  HINT = format('`outbox consumers history %s` lists those it has', consumer);
    END IF;
    -- register checks whether the caller is allowed to do this, and locks the consumer.
    PERFORM @schema@.register(s.consumer, s.events, s.predicate, s.ordering, s.lanes, policy,
                              how => 'purpose');
    RETURN s.generation;
END
$outbox$;
COMMENT ON FUNCTION @schema@.revert(text, int) IS
    'gives a consumer settings back that were replaced';
