-- trim: deletes up to max_rows of the oldest events that every consumer was done with `older_than`
-- ago, and as many old idempotency keys, inbox rows (older than `inbox`, if that is given) and
-- receipts. Call it again while `more`, with `after` => what was `upto`: the events up to there
-- were looked at, and their index entries may stay for as long as a session holds a transaction
-- open. kept: events that were made so long ago, but are still needed, among the next 10,000 (so
-- many or more, if kept_more); pin: by whom. Both with the last call. When a consumer was done with
-- an event is known from samples, which this takes (see _note_passed): an event goes no sooner, and
-- half a minute later at most if trim is called that often. No event goes that is younger than
-- `older_than` by its own created_at, and an event with an odd created_at delays no other. One
-- whose created_at is ahead of the clock is as old as the next after it that is not. An idempotency
-- key is kept for `older_than`, and as long as its event (see _key_cutoff).
CREATE OR REPLACE FUNCTION @schema@.trim(older_than interval, max_rows int DEFAULT 1000,
    inbox interval DEFAULT NULL, after bigint DEFAULT 0,
                                         OUT events bigint, OUT keys bigint, OUT inbox_rows bigint,
                                             OUT receipts bigint,
                                         OUT kept bigint, OUT kept_more boolean, OUT pin text,
                                             OUT more boolean, OUT upto bigint)
LANGUAGE plpgsql VOLATILE SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $outbox$
DECLARE
    now timestamptz := @schema@._clock();
    cutoff timestamptz := now - older_than;
    inbox_cutoff timestamptz := now - coalesce(inbox, older_than);
    every interval;      -- between samples of a consumer
    sure xid8;
    past bigint;         -- up to here,
    shown pg_snapshot;   -- and if this shows it, all consumers were done with it then; NULL: all
    left_over bigint;    -- keys
    old bigint;          -- how many events are old enough
    first bigint;        -- the first event past `after`
    last bigint;         -- the last of those that are old enough
    f record;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        SELECT t.* INTO events, keys, inbox_rows, receipts, kept, kept_more, pin, more, upto
            FROM @schema@._operator_trim(older_than, max_rows, inbox, after) t;
        RETURN;
    END IF;
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs '
            'its events'
            USING ERRCODE = 'OB004',
                HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM @schema@._floors() x ORDER BY x.floor LIMIT 1;
    every := CASE WHEN older_than > interval '0' THEN older_than / 168 ELSE interval '1 second' END;
    IF after = 0 OR @schema@._sample_due('', f.floor,
                                         now - least(every, interval '30 seconds')) THEN
        PERFORM @schema@._note_passed(now, cutoff, every);
    END IF;
    IF older_than > interval '0' THEN
        SELECT p.seq, p.seen INTO past, shown FROM @schema@._passed_by(cutoff) p;
    ELSE -- what they are done with now
        past := f.floor;
    END IF;
    sure := @schema@._surely_done();
    first := (SELECT e.seq FROM @schema@.event e WHERE e.seq > after ORDER BY e.seq LIMIT 1);
    SELECT count(*), max(o.seq) INTO old, last
    FROM (SELECT x.seq FROM (SELECT e.seq, e.created_at, e.xid FROM @schema@.event e
        WHERE e.seq >= first AND e.seq <= least(f.floor, past)
                             ORDER BY e.seq LIMIT 100000) x
          WHERE x.created_at < cutoff AND (shown IS NULL OR pg_visible_in_snapshot(x.xid, shown))
              LIMIT max_rows) o;
    events := 0;
    keys := 0;
    -- they go by their range, which has two ends: with one the planner might read the whole table
    IF old > 0 THEN
        PERFORM set_config('outbox.change_events', 'on', true); -- see _insert_only
        WITH gone AS (DELETE FROM @schema@.event e WHERE e.seq BETWEEN first AND last
            AND (e.created_at < cutoff OR e.created_at > now)
          AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown))
          AND NOT (xid8ge(e.xid, sure) AND @schema@._needed(e.xid, e.seq))
              RETURNING e.idempotency_key AS key, coalesce(e.tenant, '') AS tenant),
        forgotten AS (DELETE FROM @schema@.idempotency x USING gone g WHERE x.key = g.key
            AND x.tenant = g.tenant AND x.at < cutoff RETURNING 1)
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM forgotten) INTO events, keys;
        PERFORM set_config('outbox.change_events', '', true);
    END IF;
    more := old >= max_rows AND events > 0;
    upto := coalesce(last, after);
    kept := 0;
    kept_more := false;
    pin := '';
    IF NOT more THEN
        SELECT count(*) FILTER (WHERE x.created_at < cutoff),
            count(*) FILTER (WHERE x.created_at < cutoff) >= 10000
        INTO kept, kept_more
        FROM (SELECT e.created_at FROM @schema@.event e WHERE e.seq > coalesce(f.floor, 0)
            ORDER BY e.seq LIMIT 10000) x;
        kept := kept + (SELECT count(*) FROM @schema@.event e WHERE e.seq BETWEEN first AND last
            AND e.created_at < cutoff
                        AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown)));
    END IF;
    IF kept > 0 THEN
        pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
               ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE
                   WHEN f.paused THEN ', paused' ELSE '' END) END;
    END IF;
    IF events > 0 THEN -- records about single events go with them
        DELETE FROM @schema@.ended x WHERE x.seq <= last AND NOT EXISTS (SELECT 1
            FROM @schema@.event e WHERE e.seq = x.seq);
        DELETE FROM @schema@.adopted_row x WHERE x.seq <= last AND NOT EXISTS (SELECT 1
            FROM @schema@.event e WHERE e.seq = x.seq)
            AND NOT EXISTS (SELECT 1 FROM @schema@.dead d WHERE d.seq = x.seq);
    END IF;
    IF events > 0 AND after = 0 THEN
        DELETE FROM @schema@.former_filter x WHERE NOT EXISTS (SELECT 1 FROM @schema@.event e
            WHERE e.seq <= x.head)
            AND (x.head <= last OR EXISTS (SELECT 1 FROM @schema@.event e));
    END IF;
    left_over := 0;
    IF after = 0 AND EXISTS (SELECT 1 FROM @schema@.idempotency o WHERE o.at < cutoff) THEN
        WITH gone AS (DELETE FROM @schema@.idempotency x WHERE x.ctid = ANY (ARRAY(
                SELECT o.ctid FROM @schema@.idempotency o WHERE o.at < @schema@._key_cutoff(cutoff)
                    ORDER BY o.at LIMIT max_rows)) RETURNING 1)
        SELECT count(*) INTO left_over FROM gone;
    END IF;
    keys := keys + left_over;
    WITH gone AS (DELETE FROM @schema@.handled x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM @schema@.handled o WHERE o.at < inbox_cutoff ORDER BY o.at
                LIMIT max_rows)) RETURNING 1)
    SELECT count(*) INTO inbox_rows FROM gone;
    WITH gone AS (DELETE FROM @schema@.receipt x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM @schema@.receipt o WHERE o.at < cutoff ORDER BY o.at
                LIMIT max_rows)) RETURNING 1)
    SELECT count(*) INTO receipts FROM gone;
    more := more OR greatest(left_over, inbox_rows, receipts) >= max_rows;
    IF left_over >= max_rows THEN
        upto := 0; -- the rest is left to the next call, which has to start at the first events
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.trim(interval, int, interval, bigint)
    IS 'deletes what is old and needed by no consumer';

-- _key_cutoff: an idempotency key goes with its event. What is left, of events that a session
-- deleted, may go from before this time: older than `cutoff`, and so old that its event is gone.
-- Events are made in the order of their numbers, but for those of statements that took long: hence
-- the thousand, and the hour.
CREATE OR REPLACE FUNCTION @schema@._key_cutoff(cutoff timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $outbox$
    SELECT least($1, (SELECT min(x.created_at) - interval '1 hour'
                      FROM (SELECT e.created_at FROM @schema@.event e ORDER BY e.seq LIMIT 1000) x))
$outbox$;
