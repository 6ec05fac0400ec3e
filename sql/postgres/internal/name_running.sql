-- _name_running returns snapshot s with every transaction named in it that is running now, or NULL
-- if they are too many to name.
--
-- By itself a snapshot names only the running transactions below the last one that ended. A
-- transaction that began later looks as if it had not begun, though it may have taken its seq long
-- ago. Once all are named, whatever is at or past xmax begins after this call. The caller's own
-- transaction is among those named, or at xmax, so what it emits after this is not lost.
CREATE OR REPLACE FUNCTION @schema@._name_running(s pg_snapshot) RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint; -- whoever begins later gets a higher one
    xmin bigint := pg_snapshot_xmin(s)::text::bigint;
    xmax bigint := pg_snapshot_xmax(s)::text::bigint;
BEGIN
    IF own = xmax THEN
        RETURN s;
    ELSIF own > xmax + 1000 THEN -- a transaction of many savepoints can take that many numbers
        RETURN NULL;
    END IF;

    -- Everything from xmax up to our own number is named as running. Some of it may have ended
    -- since. It is taken for late then, which costs a look and loses nothing.
    RETURN concat(least(xmin, own), ':', greatest(xmax, own), ':',
                  (SELECT string_agg(r.x::text, ',' ORDER BY r.x)
                   FROM (SELECT p::text::bigint FROM pg_snapshot_xip(s) AS p
                         UNION SELECT generate_series(xmax, own - 1)
                         UNION SELECT own WHERE own < xmax) AS r (x)));
END
$outbox$;
COMMENT ON FUNCTION @schema@._name_running(pg_snapshot) IS
    'a snapshot that names every running transaction';
