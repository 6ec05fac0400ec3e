-- _type_like turns type patterns as they are written ('order.*, user.*') into patterns for LIKE
-- ANY. NULL: every type.
CREATE OR REPLACE FUNCTION @schema@._type_like(events text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    -- What LIKE treats specially is escaped first; only then * becomes %.
    SELECT CASE WHEN NOT bool_or(p = '*')
                THEN array_agg(replace(replace(replace(replace(
                         p, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%')) END
    FROM regexp_split_to_table(events, ',') AS x, btrim(x, E' \t\r\n') AS p
    WHERE p <> '';
END;
COMMENT ON FUNCTION @schema@._type_like(text) IS 'type patterns for LIKE';
