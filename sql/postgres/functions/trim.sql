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
-- old as the next one whose created_at is not. A key outlives its event and older_than.
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
              WHERE e.seq > coalesce(f.floor, 0) ORDER BY e.seq LIMIT 10000) x;
        kept := kept + (SELECT count(*) FROM @schema@.event e
                        WHERE e.seq BETWEEN first AND last AND e.created_at < cutoff
                          AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown)));
    END IF;
    pin := @schema@._trim_pin(kept, f.consumer, f.pin, f.floor, f.paused);

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
                              WHERE o.at < now - coalesce(inbox, older_than)
                              ORDER BY o.at LIMIT max_rows));
    GET DIAGNOSTICS inbox_rows = ROW_COUNT;
    DELETE FROM @schema@.receipt x
    WHERE x.ctid = ANY (ARRAY(SELECT o.ctid FROM @schema@.receipt o
                              WHERE o.at < cutoff ORDER BY o.at LIMIT max_rows));
    GET DIAGNOSTICS receipts = ROW_COUNT;
    more := more OR greatest(left_over, inbox_rows, receipts) >= max_rows;
    IF left_over >= max_rows THEN
        upto := 0; -- only a call that starts at the first event deletes the remaining keys
    END IF;
END $outbox$;
COMMENT ON FUNCTION @schema@.trim(interval, int, interval, bigint) IS 'deletes what is old';

-- Raises an error for a connection that works for a tenant.
CREATE OR REPLACE FUNCTION @schema@._check_trim() RETURNS void LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'a tenant cannot trim: it does not see which other consumers need its '
                        'events'
            USING ERRCODE = 'OB004',
                  HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
END $outbox$;

-- The consumer that still needs old events; '' if none are kept. For the parameters see _floors.
CREATE OR REPLACE FUNCTION @schema@._trim_pin(
    kept bigint, consumer text, pin text, floor bigint, paused boolean) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN kept = 0 THEN ''
            WHEN consumer IS NULL THEN 'no consumer is registered yet'
            ELSE format('consumer "%s" (%s at %s%s)', consumer, pin, floor,
                        CASE WHEN paused THEN ', paused' ELSE '' END) END;

-- The time before which keys without an event may be deleted: not after `cutoff`, and the events of
-- older keys are gone. The margins are for long statements, whose events are not in time order.
CREATE OR REPLACE FUNCTION @schema@._key_cutoff(cutoff timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $outbox$
    SELECT least($1, (SELECT min(x.created_at) - interval '1 hour'
                      FROM (SELECT e.created_at FROM @schema@.event e ORDER BY e.seq LIMIT 1000) x))
$outbox$;

-- Takes samples of progress: of each consumer whose last one is at least as old as `every`, and one
-- of all together ('') if none was taken in the last half minute. A sample records that at that
-- time a consumer was done with the events up to seq that `seen` shows. Trimming depends on those
-- of all, whose number does not grow with that of the consumers; the others are used when a
-- consumer was added or removed.
--
-- Samples ahead of a consumer's present position and those of removed consumers are deleted, and of
-- those at or before `cutoff` all but the last. From one sample to the next neither seq nor time
-- decreases.
CREATE OR REPLACE FUNCTION @schema@._note_passed(
    now timestamptz, cutoff timestamptz, every interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    names text[];
    floors bigint[];
    lowest bigint;
    f record;
BEGIN
    -- A sample from the future was taken while the clock was wrong. It proves only that the
    -- consumer has reached that seq by now.
    UPDATE @schema@.passed x SET at = now WHERE x.at > now;

    SELECT array_agg(c.name), array_agg(coalesce(x.floor, 0)),
           coalesce(min(coalesce(x.floor, 0)), 0)
    INTO names, floors, lowest
    FROM @schema@.consumer c LEFT JOIN @schema@._floors() x ON x.consumer = c.name;

    DELETE FROM @schema@.passed x
    WHERE NOT EXISTS (SELECT 1 FROM unnest(names || ARRAY[''], floors || lowest) AS n (name, floor)
                      WHERE n.name = x.consumer AND n.floor >= x.seq);

    FOR f IN SELECT n.name, n.floor FROM unnest(names, floors) AS n (name, floor)
             WHERE @schema@._sample_due(n.name, n.floor, now - every) LOOP
        PERFORM @schema@._put_sample(f.name, f.floor, @schema@._passed_snapshot(f.name, f.floor),
                                     now);
    END LOOP;
    IF @schema@._sample_due('', lowest, now - least(every, interval '30 seconds')) THEN
        PERFORM @schema@._put_sample('', lowest, @schema@._common_snapshot(
            (SELECT array_agg(@schema@._passed_snapshot(n.name, n.floor))
             FROM unnest(names, floors) AS n (name, floor))), now);
    END IF;

    DELETE FROM @schema@.passed x
    WHERE x.at <= cutoff
      AND (SELECT y.at FROM @schema@.passed y
           WHERE y.consumer = x.consumer AND (y.seq, y.at) > (x.seq, x.at)
           ORDER BY y.seq, y.at LIMIT 1) <= cutoff;
END $outbox$;

-- Whether a sample may add information: no sample was taken since `since`, and none with the same
-- seq was taken while no earlier transaction was running.
CREATE OR REPLACE FUNCTION @schema@._sample_due(consumer text, floor bigint, since timestamptz)
RETURNS boolean LANGUAGE sql STABLE AS $outbox$
    SELECT _sample_due.floor > 0 AND NOT EXISTS (
        SELECT 1 FROM (SELECT x.seq, x.seen, x.at FROM @schema@.passed x
                       WHERE x.consumer = _sample_due.consumer
                       ORDER BY x.seq DESC, x.at DESC LIMIT 1) last
        WHERE last.at > _sample_due.since
           OR last.seq = _sample_due.floor
              AND pg_snapshot_xmin(last.seen) = pg_snapshot_xmax(last.seen))
$outbox$;

-- Stores a sample, unless it adds nothing to the last one: it has the same seq, and no transaction
-- that was running then has ended since.
CREATE OR REPLACE FUNCTION @schema@._put_sample(
    consumer text, floor bigint, shown pg_snapshot, now timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $outbox$
    INSERT INTO @schema@.passed (consumer, seq, seen, at)
    SELECT _put_sample.consumer, _put_sample.floor, _put_sample.shown, _put_sample.now
    WHERE NOT EXISTS (
        SELECT 1 FROM @schema@.passed x
        WHERE x.consumer = _put_sample.consumer AND x.seq = _put_sample.floor
          AND NOT EXISTS (SELECT 1 FROM pg_snapshot_xip(x.seen) late
                          WHERE pg_visible_in_snapshot(late, _put_sample.shown)))
    ON CONFLICT DO NOTHING
$outbox$;

-- A snapshot: the consumer is done with every event up to its floor that the snapshot shows.
-- Between windows, a lane is done with all events except those of transactions that were running
-- when it polled; past the floor in its window, it is done with all events that the window shows.
CREATE OR REPLACE FUNCTION @schema@._passed_snapshot(consumer text, floor bigint)
RETURNS pg_snapshot LANGUAGE sql STABLE AS $outbox$
    SELECT @schema@._common_snapshot(array_agg(s.seen))
    FROM (SELECT CASE WHEN l.target IS NOT NULL AND l.pos >= _passed_snapshot.floor THEN l.target
                      ELSE @schema@._all_but_running(l.seen) END AS seen
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE c.name = _passed_snapshot.consumer AND l.lane >= 0
          UNION ALL -- late events of a claim are below its floor
          SELECT @schema@._all_but_running(k.seen) FROM @schema@.claim k
          WHERE k.consumer = _passed_snapshot.consumer AND k.lane >= 0
            AND k.from_seq < _passed_snapshot.floor) s
$outbox$;

-- A snapshot that shows all transactions begun by now, except those that were running in `seen`.
CREATE OR REPLACE FUNCTION @schema@._all_but_running(seen pg_snapshot) RETURNS pg_snapshot
LANGUAGE sql STABLE AS $outbox$
    SELECT concat(coalesce(min(x::text::bigint), m.xmax), ':', m.xmax, ':',
                  string_agg(x::text, ',' ORDER BY x))::pg_snapshot
    FROM (SELECT greatest(pg_snapshot_xmax(_all_but_running.seen),
                          pg_snapshot_xmax(pg_current_snapshot()))::text::bigint AS xmax) m
    LEFT JOIN LATERAL pg_snapshot_xip(_all_but_running.seen) AS x ON true
    GROUP BY m.xmax
$outbox$;

-- A snapshot of the transactions that every snapshot in `seen` shows; NULL if `seen` is empty.
CREATE OR REPLACE FUNCTION @schema@._common_snapshot(seen pg_snapshot[]) RETURNS pg_snapshot
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT concat(coalesce(min(r.xid), m.xmax), ':', m.xmax, ':',
                  string_agg(r.xid::text, ',' ORDER BY r.xid))::pg_snapshot
    FROM (SELECT min(pg_snapshot_xmax(s)::text::bigint) AS xmax
          FROM unnest(_common_snapshot.seen) s) m
    LEFT JOIN LATERAL (SELECT DISTINCT x::text::bigint AS xid
                       FROM unnest(_common_snapshot.seen) s, pg_snapshot_xip(s) AS x
                       WHERE x::text::bigint < m.xmax) r ON true
    WHERE m.xmax IS NOT NULL
    GROUP BY m.xmax
$outbox$;

-- Which events every consumer was done with at time `cutoff`: those up to seq that `seen` shows.
-- seq 0: none. Events before a consumer's start never concerned it, so they count as passed. A
-- sample of all consumers counts as one of each that had a sample by then.
CREATE OR REPLACE FUNCTION @schema@._passed_by(
    cutoff timestamptz, OUT seq bigint, OUT seen pg_snapshot) LANGUAGE sql STABLE AS $outbox$
    WITH of_all AS MATERIALIZED (
        -- Few samples precede the cutoff; thousands may follow it.
        SELECT y.seq, y.seen, y.at FROM @schema@.passed y
        WHERE y.consumer = '' AND y.at <= cutoff
          AND y.seq <= coalesce((SELECT z.seq FROM @schema@.passed z
                                 WHERE z.consumer = '' AND z.at > cutoff
                                 ORDER BY z.seq, z.at LIMIT 1), 9223372036854775807)
        ORDER BY y.seq DESC, y.at DESC LIMIT 1)
    SELECT coalesce(min(x.seq), 0), @schema@._common_snapshot(array_agg(x.seen))
    FROM (SELECT greatest(p.seq, c.start_floor, 0) AS seq,
                 CASE WHEN p.seq >= coalesce(c.start_floor, 0) THEN p.seen
                      ELSE @schema@._all_but_running(c.start_seen) END AS seen
          FROM @schema@.consumer c
          LEFT JOIN @schema@._floors() f ON f.consumer = c.name
          LEFT JOIN LATERAL (SELECT y.seq, y.seen, y.at FROM @schema@.passed y
                             WHERE y.consumer = c.name AND y.at <= cutoff AND y.seq <= f.floor
                             ORDER BY y.seq DESC, y.at DESC LIMIT 1) own ON true
          LEFT JOIN LATERAL (SELECT o.seq, o.seen
                             FROM (SELECT own.seq, own.seen, own.at WHERE own.at IS NOT NULL
                                   UNION ALL
                                   SELECT a.seq, a.seen, a.at FROM of_all a
                                   WHERE a.at >= own.at AND a.seq <= f.floor) o
                             ORDER BY o.seq DESC, o.at DESC LIMIT 1) p ON true) x
$outbox$;

-- When the last consumer was done with an event, by the samples; NULL if they do not show it.
CREATE OR REPLACE FUNCTION @schema@._passed_since(xid xid8, seq bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $outbox$
    SELECT CASE WHEN bool_and(x.at IS NOT NULL) THEN max(x.at) END
    FROM (SELECT CASE WHEN @schema@._before_start(c.start_seen, c.start_floor, c.start_also,
                                                  _passed_since.xid, _passed_since.seq)
                      THEN timestamptz 'epoch'
                      ELSE (SELECT min(y.at) FROM @schema@.passed y
                            WHERE y.consumer = c.name AND y.seq >= _passed_since.seq
                              AND pg_visible_in_snapshot(_passed_since.xid, y.seen)) END AS at
          FROM @schema@.consumer c) x
$outbox$;

-- How many rows repeated calls of trim would delete and keep. It reads at most `most` rows of each
-- kind, so that it takes about a second however many are kept. If more events would be deleted,
-- events_exact is false, and `events` is the size of their range of numbers, which may have gaps.
-- The other counts are lower bounds if *_more is true.
CREATE OR REPLACE FUNCTION @schema@._trim_dry_run(
    older_than interval, inbox interval DEFAULT NULL, most int DEFAULT 100000,
    OUT events bigint, OUT events_exact boolean, OUT keys bigint, OUT keys_more boolean,
    OUT inbox_rows bigint, OUT inbox_more boolean, OUT receipts bigint, OUT receipts_more boolean,
    OUT kept bigint, OUT kept_more boolean, OUT pin text)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $outbox$
DECLARE
    now timestamptz := @schema@._clock();
    cutoff timestamptz := now - older_than;
    sure xid8;
    past bigint;         -- all consumers were done by the cutoff with events up to this seq
    shown pg_snapshot;   -- that this snapshot shows; NULL: with all of them
    first bigint;        -- the first event
    last bigint;         -- the last event that is old enough
    upto bigint;         -- the last event whose key is looked up
    looked bigint;
    f record;
BEGIN
    PERFORM @schema@._check_trim();
    SELECT * INTO f FROM @schema@._floors() x ORDER BY x.floor LIMIT 1;
    SELECT p.seq, p.seen INTO past, shown FROM @schema@._passed_by(cutoff) p;
    IF older_than <= interval '0' THEN
        past := f.floor;
        shown := NULL;
    END IF;
    sure := @schema@._surely_done();

    -- The last event to delete is among the last that all consumers are done with. If these are all
    -- too young by their own created_at, it is among the first events, where trim looks, too.
    first := (SELECT e.seq FROM @schema@.event e ORDER BY e.seq LIMIT 1);
    SELECT count(*), max(x.seq) FILTER (WHERE x.created_at < cutoff AND (shown IS NULL
               OR pg_visible_in_snapshot(x.xid, shown)))
    INTO looked, last
    FROM (SELECT e.seq, e.xid, e.created_at FROM @schema@.event e
          WHERE e.seq <= least(f.floor, past) ORDER BY e.seq DESC LIMIT most) x;
    events_exact := true;
    IF last IS NULL AND looked >= most THEN
        SELECT max(x.seq) INTO last
        FROM (SELECT e.seq, e.xid, e.created_at FROM @schema@.event e
              WHERE e.seq <= least(f.floor, past) ORDER BY e.seq LIMIT most) x
        WHERE x.created_at < cutoff
          AND (shown IS NULL OR pg_visible_in_snapshot(x.xid, shown));
        events_exact := last IS NULL;
    END IF;

    events := 0;
    upto := last;
    IF last - first >= most THEN
        events := last - first + 1;
        events_exact := false;
        upto := first + most - 1;
    ELSIF last IS NOT NULL THEN
        events := (SELECT count(*) FROM @schema@.event e
                   WHERE e.seq BETWEEN first AND last
                     AND @include is_trimmed(e)@);
    END IF;

    -- A key is deleted with its event, or if its event is surely gone. The oldest keys are the
    -- first events'.
    SELECT count(*),
           count(*) FILTER (WHERE x.at < @schema@._key_cutoff(cutoff) OR (x.key, x.tenant) IN (
               SELECT e.idempotency_key, coalesce(e.tenant, '') FROM @schema@.event e
               WHERE e.seq BETWEEN first AND upto AND e.idempotency_key IS NOT NULL
                 AND @include is_trimmed(e)@))
    INTO looked, keys
    FROM (SELECT i.key, i.tenant, i.at FROM @schema@.idempotency i
          WHERE i.at < cutoff ORDER BY i.at LIMIT most) x;
    keys_more := looked >= most OR keys < looked AND NOT events_exact;

    -- Up to the floor, only events of transactions that a lane has not seen may be needed. Checking
    -- an event costs more than counting it, so a tenth as many are checked.
    SELECT count(*), count(*) FILTER (WHERE x.created_at < cutoff) INTO looked, kept
    FROM (SELECT e.created_at FROM @schema@.event e
          WHERE e.seq > coalesce(f.floor, 0) ORDER BY e.seq LIMIT most) x;
    kept_more := looked >= most AND kept > 0;
    kept := kept + (SELECT count(*)
                    FROM (SELECT e.xid, e.seq, e.created_at FROM @schema@.event e
                          WHERE e.xid >= sure ORDER BY e.xid, e.seq LIMIT most / 10) x
                    WHERE x.seq <= f.floor AND x.created_at < cutoff
                      AND @schema@._needed(x.xid, x.seq));
    pin := @schema@._trim_pin(kept, f.consumer, f.pin, f.floor, f.paused);

    inbox_rows := (SELECT count(*)
                   FROM (SELECT 1 FROM @schema@.handled x
                         WHERE x.at < now - coalesce(inbox, older_than) LIMIT most) y);
    inbox_more := inbox_rows >= most;
    receipts := (SELECT count(*)
                 FROM (SELECT 1 FROM @schema@.receipt x WHERE x.at < cutoff LIMIT most) y);
    receipts_more := receipts >= most;
END $outbox$;
