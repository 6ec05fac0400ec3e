-- close grants every role the functions that _open_to_all names, and revokes all others. The server
-- lets every role call a function that is new.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT CASE
                   WHEN x.open THEN 'GRANT EXECUTE ON ROUTINE %s TO PUBLIC'
                   ELSE 'REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC'
               END AS text,
               string_agg(x.which, ', ') AS which
        FROM (
            SELECT p.oid::regprocedure::text AS which,
                   p.proname = ANY (@schema@._open_to_all()) AS open,
                   EXISTS (
                       SELECT 1
                       FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                       WHERE a.grantee = 0) AS is_open
            FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = '@schema@'::regnamespace
              AND p.proname = ANY ('{@functions@}')
        ) x
        WHERE x.open <> x.is_open
        GROUP BY x.open
    LOOP
        EXECUTE format(f.text, f.which);
    END LOOP;
END
$outbox$;
