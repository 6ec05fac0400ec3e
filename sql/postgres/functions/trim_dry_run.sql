-- trim_dry_run: what calling trim until there is no more would delete, and what it would keep. It counts them all.
CREATE OR REPLACE FUNCTION @schema@.trim_dry_run(older_than interval, inbox interval DEFAULT NULL, OUT events bigint,
                                                 OUT keys bigint, OUT inbox_rows bigint, OUT receipts bigint, OUT kept bigint,
                                                 OUT pin text)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    now timestamptz := @schema@.clock();
    cutoff timestamptz := now - older_than;
    sure xid8;
    last bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs its events'
            USING ERRCODE = 'OB004', HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM @schema@.floors() x ORDER BY x.floor LIMIT 1;
    sure := @schema@.surely_done();
    SELECT max(e.seq) INTO last FROM @schema@.event e WHERE e.seq <= f.floor AND e.created_at < cutoff;
    SELECT count(*) FILTER (WHERE o.free), count(*) FILTER (WHERE NOT o.free AND o.created_at < cutoff) INTO events, kept
    FROM (SELECT e.created_at, coalesce(e.seq <= last, false) AND (e.created_at < cutoff OR e.created_at > now)
                 AND NOT (xid8ge(e.xid, sure) AND @schema@.needed(e.xid, e.seq)) AS free FROM @schema@.event e) o;
    pin := '';
    IF kept > 0 THEN
        pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
               ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE WHEN f.paused THEN ', paused' ELSE '' END) END;
    END IF;
    keys := (SELECT count(*) FROM @schema@.idempotency x WHERE x.at < cutoff);
    inbox_rows := (SELECT count(*) FROM @schema@.handled x WHERE x.at < now - coalesce(inbox, older_than));
    receipts := (SELECT count(*) FROM @schema@.receipt x WHERE x.at < cutoff);
END
$outbox$;
COMMENT ON FUNCTION @schema@.trim_dry_run(interval, interval) IS 'what trim would delete';
