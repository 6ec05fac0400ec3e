-- trim_dry_run: what calling trim until there is no more would delete.
CREATE OR REPLACE FUNCTION @schema@.trim_dry_run(older_than interval, inbox interval DEFAULT NULL, OUT events bigint,
                                                 OUT keys bigint, OUT kept bigint, OUT pin text)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    cutoff timestamptz := @schema@.clock() - older_than;
    young bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs its events'
            USING ERRCODE = 'OB004', HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM @schema@.floors() x ORDER BY x.floor LIMIT 1;
    SELECT min(e.seq) INTO young FROM @schema@.event e WHERE e.created_at >= cutoff;
    SELECT count(*) FILTER (WHERE e.seq <= coalesce(f.floor, 0)), count(*) INTO events, kept
    FROM @schema@.event e WHERE e.seq < coalesce(young, 9223372036854775807);
    kept := kept - events;
    pin := CASE WHEN kept = 0 THEN '' WHEN f IS NULL THEN 'no consumer is registered yet'
           ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE WHEN f.paused THEN ', paused' ELSE '' END) END;
    keys := (SELECT count(*) FROM @schema@.idempotency x WHERE x.at < cutoff)
          + (SELECT count(*) FROM @schema@.handled x WHERE x.at < @schema@.clock() - coalesce(inbox, older_than))
          + (SELECT count(*) FROM @schema@.receipt x WHERE x.at < cutoff);
END
$outbox$;
COMMENT ON FUNCTION @schema@.trim_dry_run(interval, interval) IS 'what trim would delete';
