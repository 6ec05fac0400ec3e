-- _key returns the number that order goes by. Events with the same number are delivered one after
-- the other; 0 means that order does not matter for the event. The hash must never change, because
-- it is stored in parked.key. hashtextextended does not, since hash partitions depend on it.
CREATE OR REPLACE FUNCTION @schema@._key(ordering text, aggregate_type text, aggregate_id text)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
           WHEN ordering = 'none' THEN 0
           WHEN ordering = 'global' THEN 1
           WHEN aggregate_id IS NULL THEN 0
           ELSE coalesce(nullif(hashtextextended(coalesce(aggregate_type, '') || chr(1)
                                                 || aggregate_id, 0), 0), 1)
       END;
COMMENT ON FUNCTION @schema@._key(text, text, text) IS 'what order goes by; 0: nothing';
