-- Deletes up to max_rows of the oldest events that every consumer was done with `older_than` ago,
-- and as many old idempotency keys, inbox rows and receipts.
--
--     inbox      the age of inbox rows to delete; NULL: older_than
--     after      0, or upto of the previous call: events up to there were examined already, and
--                their index entries stay for as long as a session holds a transaction open
--     more       call it again, with `after` => upto
--     kept       of the next 10,000 events, those that are old enough but still needed; known
--                once `more` is false
--     kept_more  not all of those were counted
--     pin        which consumer needs them
--
-- Samples show when a consumer was done with an event (see _note_passed). So an event is deleted no
-- sooner than older_than, and at most half a minute later if trim is called often enough; never
-- before its own created_at is that old. An event whose created_at is ahead of the clock counts as
-- old as the next one whose created_at is not. A key is kept for older_than, and as long as its
-- event.
CREATE OR REPLACE FUNCTION @schema@.trim(
    older_than interval, max_rows int DEFAULT 1000, inbox interval DEFAULT NULL,
    after bigint DEFAULT 0,
    OUT events bigint, OUT keys bigint, OUT inbox_rows bigint, OUT receipts bigint,
    OUT kept bigint, OUT kept_more boolean, OUT pin text, OUT more boolean, OUT upto bigint)
LANGUAGE plpgsql VOLATILE SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $outbox$
DECLARE
    now timestamptz := @schema@._clock();
    cutoff timestamptz := now - older_than;
    inbox_cutoff timestamptz := now - coalesce(inbox, older_than);
    every interval;      -- between samples of a consumer
    sure xid8;
    past bigint;         -- all consumers were done by the cutoff with events up to this seq
    shown pg_snapshot;   -- that this snapshot shows; NULL: with all of them
    left_over bigint;    -- keys without an event
    old bigint;          -- how many events are old enough
    first bigint;        -- the first event past `after`
    last bigint;         -- the last event that is old enough
    f record;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN -- see wrappers.sql
        SELECT t.* INTO events, keys, inbox_rows, receipts, kept, kept_more, pin, more, upto
        FROM @schema@._operator_trim(older_than, max_rows, inbox, after) t;
        RETURN;
    END IF;
    PERFORM @schema@._check_trim();

    -- How far had all consumers come at the cutoff?
    SELECT * INTO f FROM @schema@._floors() x ORDER BY x.floor LIMIT 1;
    every := CASE WHEN older_than > interval '0' THEN older_than / 168 ELSE interval '1 second' END;
    IF after = 0
       OR @schema@._sample_due('', f.floor, now - least(every, interval '30 seconds')) THEN
        PERFORM @schema@._note_passed(now, cutoff, every);
    END IF;
    IF older_than > interval '0' THEN
        SELECT p.seq, p.seen INTO past, shown FROM @schema@._passed_by(cutoff) p;
    ELSE
        past := f.floor; -- of now
    END IF;

    -- With only one end of the range the planner might read the whole table.
    sure := @schema@._surely_done();
    first := (SELECT e.seq FROM @schema@.event e WHERE e.seq > after ORDER BY e.seq LIMIT 1);
    SELECT count(*), max(o.seq) INTO old, last
    FROM (SELECT x.seq
          FROM (SELECT e.seq, e.created_at, e.xid FROM @schema@.event e
                WHERE e.seq >= first AND e.seq <= least(f.floor, past)
                ORDER BY e.seq LIMIT 100000) x
          WHERE x.created_at < cutoff AND (shown IS NULL OR pg_visible_in_snapshot(x.xid, shown))
          LIMIT max_rows) o;
    events := 0;
    keys := 0;
    IF old > 0 THEN
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        WITH gone AS (
            DELETE FROM @schema@.event e
            WHERE e.seq BETWEEN first AND last
              AND @include is_trimmed(e)@
            RETURNING e.idempotency_key AS key, coalesce(e.tenant, '') AS tenant),
        forgotten AS (
            DELETE FROM @schema@.idempotency x USING gone g
            WHERE x.key = g.key AND x.tenant = g.tenant AND x.at < cutoff
            RETURNING 1)
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM forgotten) INTO events, keys;
        PERFORM set_config('outbox.change_events', '', true);
    END IF;
    more := old >= max_rows AND events > 0;
    upto := coalesce(last, after);

    -- Which old events are still needed, and by which consumer?
    kept := 0;
    kept_more := false;
    IF NOT more THEN
        SELECT count(*) FILTER (WHERE x.created_at < cutoff),
               count(*) FILTER (WHERE x.created_at < cutoff) >= 10000
        INTO kept, kept_more
        FROM (SELECT e.created_at FROM @schema@.event e
              WHERE e.seq > coalesce(f.floor, 0)
              ORDER BY e.seq LIMIT 10000) x;
        kept := kept + (SELECT count(*) FROM @schema@.event e
                        WHERE e.seq BETWEEN first AND last AND e.created_at < cutoff
                          AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown)));
    END IF;
    pin := @schema@._trim_pin(kept, f.consumer, f.pin, f.floor, f.paused);

    -- Records about single events are deleted with them.
    IF events > 0 THEN
        DELETE FROM @schema@.ended x
        WHERE x.seq <= last
          AND NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = x.seq);
        DELETE FROM @schema@.adopted_row x
        WHERE x.seq <= last
          AND NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = x.seq)
          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d WHERE d.seq = x.seq);
    END IF;
    IF events > 0 AND after = 0 THEN
        DELETE FROM @schema@.former_filter x
        WHERE NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq <= x.head)
          AND (x.head <= last OR EXISTS (SELECT 1 FROM @schema@.event e));
    END IF;

    -- Other old rows.
    left_over := 0;
    IF after = 0 AND EXISTS (SELECT 1 FROM @schema@.idempotency o WHERE o.at < cutoff) THEN
        DELETE FROM @schema@.idempotency x
        WHERE x.ctid = ANY (ARRAY(SELECT o.ctid FROM @schema@.idempotency o
                                  WHERE o.at < @schema@._key_cutoff(cutoff)
                                  ORDER BY o.at LIMIT max_rows));
        GET DIAGNOSTICS left_over = ROW_COUNT;
    END IF;
    keys := keys + left_over;
    DELETE FROM @schema@.handled x
    WHERE x.ctid = ANY (ARRAY(SELECT o.ctid FROM @schema@.handled o
                              WHERE o.at < inbox_cutoff
                              ORDER BY o.at LIMIT max_rows));
    GET DIAGNOSTICS inbox_rows = ROW_COUNT;
    DELETE FROM @schema@.receipt x
    WHERE x.ctid = ANY (ARRAY(SELECT o.ctid FROM @schema@.receipt o
                              WHERE o.at < cutoff
                              ORDER BY o.at LIMIT max_rows));
    GET DIAGNOSTICS receipts = ROW_COUNT;
    more := more OR greatest(left_over, inbox_rows, receipts) >= max_rows;
    IF left_over >= max_rows THEN
        upto := 0; -- only a call that starts at the first event deletes the remaining keys
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.trim(interval, int, interval, bigint)
    IS 'deletes what is old and needed by no consumer';
