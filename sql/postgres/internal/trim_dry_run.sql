-- _trim_dry_run: what calling trim until there is no more would delete, and what it would keep. It
-- counts them all.
CREATE OR REPLACE FUNCTION @schema@._trim_dry_run(older_than interval, inbox interval DEFAULT NULL,
    OUT events bigint,
                                                 OUT keys bigint, OUT inbox_rows bigint,
                                                     OUT receipts bigint, OUT kept bigint,
                                                 OUT pin text)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    now timestamptz := @schema@._clock();
    cutoff timestamptz := now - older_than;
    sure xid8;
    past bigint;         -- up to here,
    shown pg_snapshot;   -- and if this shows it, everybody was done with it at the time; NULL: all
    last bigint;
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
    SELECT max(e.seq) INTO last FROM @schema@.event e WHERE e.seq <= least(f.floor, past)
        AND e.created_at < cutoff
        AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown));
    WITH judged AS (SELECT e.idempotency_key AS key, coalesce(e.tenant, '') AS tenant,
        e.created_at, coalesce(e.seq <= last, false) AND (e.created_at < cutoff
        OR e.created_at > now)
                 AND (shown IS NULL OR pg_visible_in_snapshot(e.xid, shown)) AS old,
                 e.seq > coalesce(f.floor, 0) OR xid8ge(e.xid, sure)
                     AND @schema@._needed(e.xid, e.seq) AS needed
          FROM @schema@.event e)
    SELECT count(*) FILTER (WHERE o.old AND NOT o.needed), count(*) FILTER (WHERE o.needed
        AND o.created_at < cutoff),
           (SELECT count(*) FROM @schema@.idempotency x WHERE x.at < cutoff
               AND (x.at < @schema@._key_cutoff(cutoff)
                OR (x.key, x.tenant) IN (SELECT j.key, j.tenant FROM judged j WHERE j.old
                    AND NOT j.needed AND j.key IS NOT NULL)))
    INTO events, kept, keys FROM judged o;
    pin := '';
    IF kept > 0 THEN
        pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
               ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE
                   WHEN f.paused THEN ', paused' ELSE '' END) END;
    END IF;
    inbox_rows := (SELECT count(*) FROM @schema@.handled x
        WHERE x.at < now - coalesce(inbox, older_than));
    receipts := (SELECT count(*) FROM @schema@.receipt x WHERE x.at < cutoff);
END
$outbox$;
COMMENT ON FUNCTION @schema@._trim_dry_run(interval, interval) IS 'what trim would delete';
