-- trim: deletes up to max_rows of the oldest events that are older than `older_than` and needed by nobody, and as many old
-- idempotency keys, inbox rows (older than `inbox`, if that is given) and receipts. Call it again while `more`. kept: events
-- old enough, but still needed.
CREATE OR REPLACE FUNCTION @schema@.trim(older_than interval, max_rows int DEFAULT 1000, inbox interval DEFAULT NULL,
                                         OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text,
                                         OUT more boolean)
LANGUAGE plpgsql VOLATILE SET jit = off AS $outbox$
DECLARE
    cutoff timestamptz := @schema@.clock() - older_than;
    inbox_cutoff timestamptz := @schema@.clock() - coalesce(inbox, older_than);
    floor bigint;
    last bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs its events'
            USING ERRCODE = 'OB004', HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM @schema@.floors() x ORDER BY x.floor LIMIT 1;
    floor := coalesce(f.floor, 0);
    pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
           ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE WHEN f.paused THEN ', paused' ELSE '' END) END;
    SELECT count(*), max(o.seq) INTO kept, last
    FROM (SELECT x.seq, bool_and(x.created_at < cutoff) OVER (ORDER BY x.seq) AS old
          FROM (SELECT e.seq, e.created_at FROM @schema@.event e ORDER BY e.seq LIMIT max_rows) x) o WHERE o.old;
    DELETE FROM @schema@.event e WHERE e.seq <= last AND e.seq <= floor AND NOT @schema@.needed(e.xid, e.seq);
    GET DIAGNOSTICS events = ROW_COUNT;
    kept := kept - events;
    IF kept = 0 THEN
        pin := '';
    END IF;
    WITH gone AS (DELETE FROM @schema@.idempotency x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM @schema@.idempotency o WHERE o.at < cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT count(*) INTO keys FROM gone;
    WITH gone AS (DELETE FROM @schema@.handled x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM @schema@.handled o WHERE o.at < inbox_cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT keys + count(*) INTO keys FROM gone;
    WITH gone AS (DELETE FROM @schema@.receipt x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM @schema@.receipt o WHERE o.at < cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT keys + count(*) INTO keys FROM gone;
    more := events = max_rows OR keys >= max_rows;
END
$outbox$;
COMMENT ON FUNCTION @schema@.trim(interval, int, interval) IS 'deletes what is old and needed by nobody';
