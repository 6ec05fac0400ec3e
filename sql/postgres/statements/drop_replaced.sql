-- drop_replaced drops views and functions that are about to be created again with other columns.
-- Views are dropped first, because they depend on functions.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT true AS is_view, c.oid, format('DROP VIEW %s', c.oid::regclass) AS text
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = '@schema@'::regnamespace
          AND c.relkind = 'v' AND c.relname = ANY ('{@views@}')
        UNION ALL
        SELECT false, p.oid, format('DROP ROUTINE %s', p.oid::regprocedure)
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname = ANY ('{@functions@}')
        ORDER BY is_view DESC, oid DESC
    LOOP
        EXECUTE f.text;
    END LOOP;
END $outbox$
