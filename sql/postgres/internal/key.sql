-- _key: what order goes by. 0: nothing. hashtextextended is what hash partitions rest on, so it stays as it is.
CREATE OR REPLACE FUNCTION @schema@._key(ordering text, aggregate_type text, aggregate_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
        WHEN $1 = 'none' THEN 0
        WHEN $1 = 'global' THEN 1
        WHEN $3 IS NULL THEN 0
        ELSE coalesce(nullif(hashtextextended(coalesce($2, '') || chr(1) || $3, 0), 0), 1)
    END;
COMMENT ON FUNCTION @schema@._key(text, text, text) IS 'what order goes by; 0: nothing';
