-- window_next: the lowest seq past `pos` in a window; NULL: none. A probe or two of an index, whatever the backlog. The
-- late one goes first, and bounds the other: a late transaction of a million events is not walked over for each chunk.
CREATE OR REPLACE FUNCTION @schema@.window_next(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint,
                                                window_end bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    late bigint;
    fresh bigint;
BEGIN
    SELECT min(n.seq) INTO late FROM pg_snapshot_xip(seen) AS x (xid), LATERAL (
        SELECT i.seq FROM @schema@.event i WHERE i.xid = x.xid AND i.seq > pos ORDER BY i.seq LIMIT 1) AS n
    WHERE pg_visible_in_snapshot(x.xid, target);
    SELECT e.seq INTO fresh FROM @schema@.event e
    WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end AND e.seq < coalesce(late, 9223372036854775807)
      AND xid8ge(e.xid, pg_snapshot_xmax(seen)) AND pg_visible_in_snapshot(e.xid, target)
    ORDER BY e.seq LIMIT 1;
    RETURN coalesce(fresh, late);
END
$outbox$;
COMMENT ON FUNCTION @schema@.window_next(pg_snapshot, bigint, pg_snapshot, bigint, bigint) IS 'the next seq of a window';
