-- _window_next returns the lowest seq past `pos` in a window, or NULL if there is none. That takes
-- a probe or two of an index, whatever the backlog. The window is given as to _window_events.
--
-- The late events are probed first, and bound the search for a fresh one: a late transaction of a
-- million events is not walked over for each chunk.
CREATE OR REPLACE FUNCTION @schema@._window_next(
    seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint, whose text)
RETURNS bigint
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    late bigint;
    fresh bigint;
BEGIN
    SELECT min(n.seq) INTO late
    FROM pg_snapshot_xip(seen) AS x (xid),
         LATERAL (SELECT i.seq FROM @schema@.event i
                  WHERE i.xid = x.xid AND i.seq > pos AND (whose = '' OR i.tenant = whose)
                  ORDER BY i.seq LIMIT 1) AS n
    WHERE pg_visible_in_snapshot(x.xid, target);
    -- A fresh event is past the floor, and is wanted only if it comes before the late one.
    SELECT e.seq INTO fresh FROM @schema@.event e
    WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end
      AND e.seq < coalesce(late, 9223372036854775807)
      AND xid8ge(e.xid, pg_snapshot_xmax(seen)) AND pg_visible_in_snapshot(e.xid, target)
      AND (whose = '' OR e.tenant = whose)
    ORDER BY e.seq LIMIT 1;
    RETURN coalesce(fresh, late);
END
$outbox$;
COMMENT ON FUNCTION @schema@._window_next(
    pg_snapshot, bigint, pg_snapshot, bigint, bigint, text) IS 'the next seq of a window';

-- _window_look is _window_next in a step of at most `most` rows, for a window that may be full of
-- events of others. next is the seq that was found. upto: nothing was found up to there, and there
-- is more behind it. Both NULL: there is none.
CREATE OR REPLACE FUNCTION @schema@._window_look(
    seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint, most bigint,
    whose text, OUT next bigint, OUT upto bigint)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    late bigint;
BEGIN
    SELECT min(n.seq) INTO late
    FROM pg_snapshot_xip(seen) AS x (xid),
         LATERAL (SELECT i.seq FROM @schema@.event i
                  WHERE i.xid = x.xid AND i.seq > pos AND (whose = '' OR i.tenant = whose)
                  ORDER BY i.seq LIMIT 1) AS n
    WHERE pg_visible_in_snapshot(x.xid, target);
    -- The bound is on the rows that are looked at, whoever they belong to.
    SELECT f.seq INTO next
    FROM (SELECT e.seq, e.xid, e.tenant FROM @schema@.event e
          WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end
            AND e.seq < coalesce(late, 9223372036854775807)
          ORDER BY e.seq LIMIT most) AS f
    WHERE xid8ge(f.xid, pg_snapshot_xmax(seen)) AND pg_visible_in_snapshot(f.xid, target)
      AND (whose = '' OR f.tenant = whose)
    ORDER BY f.seq LIMIT 1;

    -- Nothing among these rows: was that all, or only as many as one step looks at?
    IF next IS NULL THEN
        SELECT e.seq INTO upto FROM @schema@.event e
        WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end
          AND e.seq < coalesce(late, 9223372036854775807)
        ORDER BY e.seq OFFSET most - 1 LIMIT 1;
        -- That was all of the fresh ones: the late one is the next, if there is one.
        IF upto IS NULL THEN
            next := late;
        END IF;
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._window_look(
    pg_snapshot, bigint, pg_snapshot, bigint, bigint, bigint, text) IS
    'the next seq of a window, in a step';
