-- type_like: type patterns as they are written ('order.*, user.*') for LIKE ANY; NULL: every type.
CREATE OR REPLACE FUNCTION @schema@.type_like(events text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT array_agg(replace(replace(replace(replace(btrim(p, E' \t\r\n'), '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'))
    FROM regexp_split_to_table($1, ',') AS p WHERE btrim(p, E' \t\r\n') <> ''
$outbox$;
COMMENT ON FUNCTION @schema@.type_like(text) IS 'type patterns for LIKE';
