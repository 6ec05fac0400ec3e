-- _normal_events brings type patterns into one form for all that mean the same: sorted, each once,
-- and '' for every type. src/event/normal.c does the same for the program.
CREATE OR REPLACE FUNCTION @schema@._normal_events(events text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN bool_or(p = '*') THEN ''
                ELSE coalesce(string_agg(DISTINCT p, ', ' ORDER BY p), '') END
    FROM (SELECT regexp_replace(btrim(x, E' \t\n\v\f\r'), E'\\*+', '*', 'g') COLLATE "C"
          FROM regexp_split_to_table(events, ',') AS x) AS n (p)
    WHERE p <> ''
$outbox$;
COMMENT ON FUNCTION @schema@._normal_events(text) IS
    'type patterns, one form for all that mean the same';
