-- lanes: the current row of every lane of a consumer, the parked one (-1) first.
CREATE OR REPLACE FUNCTION @schema@.lanes(consumer text, lanes int) RETURNS SETOF @schema@.lane
LANGUAGE sql STABLE ROWS 2 AS $outbox$
    -- Every name has its schema.
    SELECT l.* FROM pg_catalog.generate_series(-1, $2 OPERATOR(pg_catalog.-) 1) AS n, LATERAL (
        SELECT * FROM @schema@.lane x WHERE x.consumer OPERATOR(pg_catalog.=) $1 AND x.lane OPERATOR(pg_catalog.=) n
        ORDER BY x.version DESC LIMIT 1) AS l
$outbox$;
COMMENT ON FUNCTION @schema@.lanes(text, int) IS 'how far each lane of a consumer has got';
