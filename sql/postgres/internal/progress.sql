-- _progress returns where a consumer with `lanes` lanes is, by the one that is furthest behind, and
-- how many events it has been delivered. Lane -1, of the parked events, has no place. It is not
-- inlined: a statement that goes through all consumers would be expected to go through 1,000 lanes
-- of each, and be compiled for that.
CREATE OR REPLACE FUNCTION @schema@._progress(
    consumer text, lanes int, OUT place bigint, OUT delivered bigint)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    SELECT min(CASE WHEN x.lane < 0 THEN NULL
                    WHEN x.target IS NULL THEN x.floor
                    ELSE greatest(x.floor, x.pos) END),
           sum(x.delivered)::bigint
    FROM @schema@._lanes(_progress.consumer, _progress.lanes) x
$outbox$;
COMMENT ON FUNCTION @schema@._progress(text, int) IS 'where a consumer is, and what it has had';
