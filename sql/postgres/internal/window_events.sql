-- _window_events: what `target` shows and `seen` did not, with a seq in (from_seq, to_seq]. Two branches, because an OR of
-- them falls into a sequential scan. Fresh: transactions that had not begun when `seen` was taken; since each had its xid
-- before its first seq, their events are all past `floor`, the last seq given out just before `seen`. Late: those that
-- were running then, however low the seq they took. Each in order, so that who wants all in order has them merged. whose: a
-- tenant, whose events alone are meant; '': everybody's.
CREATE OR REPLACE FUNCTION @schema@._window_events(seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint,
                                                  to_seq bigint, whose text) RETURNS SETOF @schema@.event
LANGUAGE sql STABLE AS $outbox$
    -- Every name has its schema.
    (SELECT e.* FROM @schema@.event e
     WHERE e.seq OPERATOR(pg_catalog.>) greatest($4, $2) AND e.seq OPERATOR(pg_catalog.<=) $5
       AND pg_catalog.xid8ge(e.xid, pg_catalog.pg_snapshot_xmax($1)) AND pg_catalog.pg_visible_in_snapshot(e.xid, $3)
       AND ($6 OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) $6) ORDER BY e.seq)
    UNION ALL
    (SELECT e.* FROM pg_catalog.pg_snapshot_xip($1) AS late (xid), LATERAL (
         SELECT i.* FROM @schema@.event i WHERE i.xid OPERATOR(pg_catalog.=) late.xid
             AND i.seq OPERATOR(pg_catalog.>) $4 AND i.seq OPERATOR(pg_catalog.<=) $5
         ORDER BY i.seq OFFSET 0) AS e -- the fence keeps it on the index by xid
     WHERE pg_catalog.pg_visible_in_snapshot(late.xid, $3)
       AND ($6 OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) $6) ORDER BY e.seq)
$outbox$;
COMMENT ON FUNCTION @schema@._window_events(pg_snapshot, bigint, pg_snapshot, bigint, bigint, text) IS
    'the events between two snapshots';
