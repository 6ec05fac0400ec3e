-- _trim_dry_run returns what calling trim until there is no more would delete, and what it would
-- keep. It looks at no more than `most` rows of each kind, so that it takes about a second however
-- many are kept. If more events would go, `events` is the number of their numbers (events_exact is
-- false): some of those may belong to no event. The other counts are at least so many if *_more
-- says so.
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
    past bigint;         -- up to here,
    shown pg_snapshot;   -- and if this shows it, everybody was done with it at the time; NULL: all
    first bigint;        -- the first event of all
    last bigint;         -- the last of those that are old enough
    upto bigint;         -- the last whose key is looked for
    looked bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs '
            'its events'
            USING ERRCODE = 'OB004',
                HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM @schema@._floors() x ORDER BY x.floor LIMIT 1;
    SELECT p.seq, p.seen INTO past, shown FROM @schema@._passed_by(cutoff) p;
    IF older_than <= interval '0' THEN
        past := f.floor;
        shown := NULL;
    END IF;
    sure := @schema@._surely_done();

    -- The last that may go is among the last that everybody is done with. If those are all too
    -- young by their own time, it is among the first of all: trim looks there.
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
                     AND (e.created_at < cutoff OR e.created_at > now)
                     AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown))
                     AND NOT (xid8ge(e.xid, sure) AND @schema@._needed(e.xid, e.seq)));
    END IF;

    -- A key goes with its event, or if its event is surely gone. The oldest belong to the first
    -- events.
    SELECT count(*),
           count(*) FILTER (WHERE x.at < @schema@._key_cutoff(cutoff) OR (x.key, x.tenant) IN (
               SELECT e.idempotency_key, coalesce(e.tenant, '') FROM @schema@.event e
               WHERE e.seq BETWEEN first AND upto AND e.idempotency_key IS NOT NULL
                 AND (e.created_at < cutoff OR e.created_at > now)
                 AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown))
                 AND NOT (xid8ge(e.xid, sure) AND @schema@._needed(e.xid, e.seq))))
    INTO looked, keys
    FROM (SELECT i.key, i.tenant, i.at FROM @schema@.idempotency i
          WHERE i.at < cutoff ORDER BY i.at LIMIT most) x;
    keys_more := looked >= most OR keys < looked AND NOT events_exact;

    -- Of those up to the floor, only events of transactions that some lane has not seen may be
    -- needed. To ask costs more than to count: a tenth of them is looked at.
    SELECT count(*), count(*) FILTER (WHERE x.created_at < cutoff) INTO looked, kept
    FROM (SELECT e.created_at FROM @schema@.event e
          WHERE e.seq > coalesce(f.floor, 0) ORDER BY e.seq LIMIT most) x;
    kept_more := looked >= most AND kept > 0;
    kept := kept + (SELECT count(*)
                    FROM (SELECT e.xid, e.seq, e.created_at FROM @schema@.event e
                          WHERE e.xid >= sure ORDER BY e.xid, e.seq LIMIT most / 10) x
                    WHERE x.seq <= f.floor AND x.created_at < cutoff
                      AND @schema@._needed(x.xid, x.seq));
    pin := '';
    IF kept > 0 THEN
        pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
               ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE
                   WHEN f.paused THEN ', paused' ELSE '' END) END;
    END IF;

    inbox_rows := (SELECT count(*)
                   FROM (SELECT 1 FROM @schema@.handled x
                         WHERE x.at < now - coalesce(inbox, older_than) LIMIT most) y);
    inbox_more := inbox_rows >= most;
    receipts := (SELECT count(*)
                 FROM (SELECT 1 FROM @schema@.receipt x WHERE x.at < cutoff LIMIT most) y);
    receipts_more := receipts >= most;
END
$outbox$;
COMMENT ON FUNCTION @schema@._trim_dry_run(interval, interval, int) IS 'what trim would delete';
