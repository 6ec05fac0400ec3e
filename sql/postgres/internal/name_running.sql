-- _name_running: snapshot s with every transaction in it that runs now; NULL: too many to name. By itself a snapshot names
-- only those below the last that ended: one that began later, and may have taken its seq long ago, looks as if it had not
-- begun. With it named, whatever is at or past xmax begins after this call. The own transaction is among the named, or at
-- xmax: what it emits after this is not lost.
CREATE OR REPLACE FUNCTION @schema@._name_running(s pg_snapshot) RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint; -- who begins from now on gets a higher one
    xmin bigint := pg_snapshot_xmin(s)::text::bigint;
    xmax bigint := pg_snapshot_xmax(s)::text::bigint;
BEGIN
    IF own = xmax THEN
        RETURN s;
    ELSIF own > xmax + 1000 THEN -- a transaction of many savepoints can do that
        RETURN NULL;
    END IF;
    RETURN concat(least(xmin, own), ':', greatest(xmax, own), ':',
                  (SELECT string_agg(r.x::text, ',' ORDER BY r.x)
                   FROM (SELECT p::text::bigint FROM pg_snapshot_xip(s) AS p
                         UNION SELECT generate_series(xmax, own - 1)
                         UNION SELECT own WHERE own < xmax) AS r (x)));
END
$outbox$;
COMMENT ON FUNCTION @schema@._name_running(pg_snapshot) IS 'a snapshot that names every running transaction';
