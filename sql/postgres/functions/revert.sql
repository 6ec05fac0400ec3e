-- revert gives a consumer back settings that were replaced: those of a generation (see the table
-- setting) or, with none named, those it had before the present ones. Only an operator may do this,
-- no worker. Returns the generation that was taken.
CREATE OR REPLACE FUNCTION @schema@.revert(consumer text, generation int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    s @schema@.setting;
    kept text; -- the retry policy, which stays as it is
BEGIN
    SELECT x.retry INTO kept FROM @schema@.consumer x WHERE x.name = revert.consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no consumer "%"', consumer
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` shows them';
    END IF;
    -- The latest generation is the present one.
    SELECT * INTO s FROM @schema@.setting x
    WHERE x.consumer = revert.consumer
      AND x.generation = coalesce(revert.generation, x.generation)
    ORDER BY x.generation DESC
    OFFSET CASE WHEN revert.generation IS NULL THEN 1 ELSE 0 END LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no such settings to go back to', consumer
            USING ERRCODE = 'OB003',
                  HINT = format('outbox consumers history %s shows those there are', consumer);
    END IF;
    -- register checks whether the caller may, and locks the consumer.
    PERFORM @schema@.register(s.consumer, s.events, s.predicate, s.ordering, s.lanes, kept,
                              how => 'purpose');
    RETURN s.generation;
END
$outbox$;
COMMENT ON FUNCTION @schema@.revert(text, int) IS
    'gives a consumer settings back that were replaced';
