-- _type_like: type patterns as they are written ('order.*, user.*') for LIKE ANY; NULL: every type.
CREATE OR REPLACE FUNCTION @schema@._type_like(events text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE WHEN NOT bool_or(p = '*')
           THEN array_agg(replace(replace(replace(replace(p, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%')) END
    FROM regexp_split_to_table($1, ',') AS x, btrim(x, E' \t\r\n') AS p WHERE p <> '';
END;
COMMENT ON FUNCTION @schema@._type_like(text) IS 'type patterns for LIKE';
