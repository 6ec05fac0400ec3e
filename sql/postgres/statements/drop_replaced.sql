-- drop_replaced drops views and functions that are about to be created again with other columns.
-- Views are dropped first, because they depend on functions.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT c.oid::regclass AS which
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = '@schema@'::regnamespace
          AND c.relkind = 'v'
          AND c.relname = ANY ('{@views@}')
    LOOP
        EXECUTE format('DROP VIEW %s', f.which);
    END LOOP;
    FOR f IN
        SELECT p.oid::regprocedure AS which
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = '@schema@'::regnamespace
          AND p.proname = ANY ('{@functions@}')
        ORDER BY p.oid DESC
    LOOP
        EXECUTE format('DROP ROUTINE %s', f.which);
    END LOOP;
END
$outbox$
