-- _window_events returns the events that `target` shows and `seen` did not, with a seq in
-- (from_seq, to_seq]. whose is the tenant whose events alone are meant; '' means everybody's.
--
-- It has two branches, because an OR of them becomes a sequential scan. The first is for fresh
-- events, of transactions that had not begun when `seen` was taken: each had its xid before its
-- first seq, so their events are all past `floor`, the last seq given out just before `seen`. The
-- second is for late events, of transactions that were running then, however low the seq they took.
-- Each branch is ordered, so that a caller who wants all in order has them merged and not sorted.
--
-- It is inlined, and every claim calls it.
CREATE OR REPLACE FUNCTION @schema@._window_events(
    seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint, to_seq bigint, whose text)
RETURNS SETOF @schema@.event
LANGUAGE sql STABLE AS $outbox$
    -- Every name has its schema.
    (SELECT e.* FROM @schema@.event e
     WHERE e.seq OPERATOR(pg_catalog.>) greatest(from_seq, floor)
       AND e.seq OPERATOR(pg_catalog.<=) to_seq
       AND pg_catalog.xid8ge(e.xid, pg_catalog.pg_snapshot_xmax(seen))
       AND pg_catalog.pg_visible_in_snapshot(e.xid, target)
       AND (whose OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) whose)
     ORDER BY e.seq)
    UNION ALL
    (SELECT e.*
     FROM pg_catalog.pg_snapshot_xip(seen) AS late (xid),
          LATERAL (SELECT i.* FROM @schema@.event i
                   WHERE i.xid OPERATOR(pg_catalog.=) late.xid
                     AND i.seq OPERATOR(pg_catalog.>) from_seq
                     AND i.seq OPERATOR(pg_catalog.<=) to_seq
                   ORDER BY i.seq OFFSET 0) AS e -- the fence keeps it on the index by xid
     WHERE pg_catalog.pg_visible_in_snapshot(late.xid, target)
       AND (whose OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) whose)
     ORDER BY e.seq)
$outbox$;
COMMENT ON FUNCTION @schema@._window_events(
    pg_snapshot, bigint, pg_snapshot, bigint, bigint, text) IS 'the events between two snapshots';
