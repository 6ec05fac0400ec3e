-- lock_tables locks all tables, so that the migration waits for no lock later. Table event is last,
-- because producers wait from the moment its lock is requested.
DO $outbox$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT c.oid::regclass AS which FROM pg_catalog.pg_class c
             WHERE c.relnamespace = '@schema@'::regnamespace AND c.relkind IN ('r', 'p')
               AND has_table_privilege(c.oid, 'UPDATE')
             ORDER BY c.relname = 'event', c.relname LOOP
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', t.which);
    END LOOP;
END $outbox$
