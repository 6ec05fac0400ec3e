-- _normal_events: type patterns in one form for all that mean the same: sorted, each once, '' for every type. The program has the
-- same in src/event/normal.c.
CREATE OR REPLACE FUNCTION @schema@._normal_events(events text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN bool_or(p = '*') THEN '' ELSE coalesce(string_agg(DISTINCT p, ', ' ORDER BY p), '') END
    FROM (SELECT regexp_replace(btrim(x, E' \t\n\v\f\r'), E'\\*+', '*', 'g') COLLATE "C"
          FROM regexp_split_to_table($1, ',') AS x) AS n (p) WHERE p <> ''
$outbox$;
COMMENT ON FUNCTION @schema@._normal_events(text) IS 'type patterns, one form for all that mean the same';
