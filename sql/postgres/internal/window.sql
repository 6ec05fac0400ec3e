-- Snapshots and windows: which events are new to a lane (docs/architecture.md).

-- Whether a lane is past an event (xid, seq): it was delivered, or is in a claim, parked or dead.
-- seen, floor, target and pos are the lane's.
CREATE OR REPLACE FUNCTION @schema@._handed_out(
    seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot(xid, seen)
       -- Of transactions that began after seen, a lane reads only events past its floor.
       OR (xid >= pg_snapshot_xmax(seen) AND seq <= floor)
       -- In an open window every event up to pos was handed out.
       OR (target IS NOT NULL AND seq <= pos AND pg_visible_in_snapshot(xid, target));

-- Whether an event is from before the configured start of a consumer. start_also lists such events
-- that the snapshot can no longer show (see _rebase_shown).
CREATE OR REPLACE FUNCTION @schema@._before_start(
    start_seen pg_snapshot, start_floor bigint, start_also bigint[], xid xid8, seq bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(@schema@._handed_out(start_seen, start_floor, NULL, 0, xid, seq), false)
       OR coalesce(seq = ANY (start_also), false);

-- The seq up to which a consumer gets no event, whenever it commits. 0: it starts at the beginning,
-- or at the end of the events as of its registration; then it gets the events of transactions that
-- were still running, whatever their seq.
CREATE OR REPLACE FUNCTION @schema@._starts_after(start_seen pg_snapshot, start_floor bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(@include start_of(_starts_after)@, 0);

-- Snapshot s extended to name every transaction that is running now; NULL if they are too many.
--
-- A snapshot names only the running transactions below the last one that ended. One that began
-- later appears not to have begun, though it may have taken its seq long ago. Once all are named,
-- every transaction at or past xmax begins after this call. The caller's own is among them, or at
-- xmax, so events that it emits later are not lost.
CREATE OR REPLACE FUNCTION @schema@._name_running(s pg_snapshot) RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint; -- any later transaction gets a higher xid
    xmin bigint := pg_snapshot_xmin(s)::text::bigint;
    xmax bigint := pg_snapshot_xmax(s)::text::bigint;
BEGIN
    IF own = xmax THEN
        RETURN s;
    ELSIF own > xmax + 1000 THEN -- a transaction with many savepoints can use that many xids
        RETURN NULL;
    END IF;

    -- Everything from xmax up to our own number is named as running. Those that have ended are
    -- treated as late, which costs a probe and loses nothing.
    RETURN concat(least(xmin, own), ':', greatest(xmax, own), ':',
                  (SELECT string_agg(r.x::text, ',' ORDER BY r.x)
                   FROM (SELECT p::text::bigint FROM pg_snapshot_xip(s) AS p
                         UNION SELECT generate_series(xmax, own - 1)
                         UNION SELECT own WHERE own < xmax) AS r (x)));
END $outbox$;

-- The events that `target` shows and `seen` did not, with a seq in (from_seq, to_seq], of tenant
-- `whose` ('': all).
--
-- A single query with OR would become a sequential scan. The first branch is for fresh events, of
-- transactions that had not begun when `seen` was taken: each had its xid before its first seq, so
-- they are past `floor`, the last seq assigned just before `seen`. The second is for late events,
-- of transactions that were running then, however low their seqs. Both are ordered, so that the
-- planner merges them. It is written to be inlined.
CREATE OR REPLACE FUNCTION @schema@._window_events(
    seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint, to_seq bigint, whose text)
RETURNS SETOF @schema@.event LANGUAGE sql STABLE AS $outbox$
    -- Every name is schema-qualified.
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
                   ORDER BY i.seq OFFSET 0) AS e -- OFFSET 0 keeps this on the index by xid
     WHERE pg_catalog.pg_visible_in_snapshot(late.xid, target)
       AND (whose OPERATOR(pg_catalog.=) '' OR e.tenant OPERATOR(pg_catalog.=) whose)
     ORDER BY e.seq)
$outbox$;

-- Finds the next event of a window past `pos`; its seq is next. It reads at most `most` rows,
-- because a window may be full of other tenants' events; NULL: as many as it takes. upto: no event
-- was found up to that seq, and more rows follow. Both are NULL at the end of the window. The other
-- parameters are those of _window_events.
--
-- Late events are probed first, and bound the search for a fresh one, so that a late transaction of
-- a million events is not scanned again for each chunk.
CREATE OR REPLACE FUNCTION @schema@._window_step(
    seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint, most bigint,
    whose text, OUT next bigint, OUT upto bigint) LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    late bigint;
BEGIN
    SELECT min(n.seq) INTO late
    FROM pg_snapshot_xip(seen) AS x (xid),
         LATERAL (SELECT i.seq FROM @schema@.event i
                  WHERE i.xid = x.xid AND i.seq > pos AND (whose = '' OR i.tenant = whose)
                  ORDER BY i.seq LIMIT 1) AS n
    WHERE pg_visible_in_snapshot(x.xid, target);
    -- A fresh event is past the floor. The limit counts rows of every tenant.
    SELECT f.seq INTO next
    FROM (SELECT e.seq, e.xid, e.tenant FROM @schema@.event e
          WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end
            AND e.seq < coalesce(late, 9223372036854775807)
          ORDER BY e.seq LIMIT most) AS f
    WHERE xid8ge(f.xid, pg_snapshot_xmax(seen)) AND pg_visible_in_snapshot(f.xid, target)
      AND (whose = '' OR f.tenant = whose)
    ORDER BY f.seq LIMIT 1;

    -- No event among these rows: did the scan reach the end, or the limit of the step?
    IF next IS NULL THEN
        SELECT e.seq INTO upto FROM @schema@.event e
        WHERE most IS NOT NULL AND e.seq > greatest(pos, floor) AND e.seq <= window_end
          AND e.seq < coalesce(late, 9223372036854775807)
        ORDER BY e.seq OFFSET most - 1 LIMIT 1;
        -- No fresh event is left: the late one is next, if any.
        IF upto IS NULL THEN next := late; END IF;
    END IF;
END $outbox$;
