-- This drops the views under names from elsewhere, because they depend on other views and on
-- functions, which are about to be installed anew. names.sql makes them again at the end. A view
-- that something of the application's depends on cannot be dropped: it stays, and is replaced
-- there.
DO $outbox$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT n.name FROM @schema@._named_views() n LOOP
        BEGIN
            EXECUTE format('DROP VIEW %s.%I', '@schema@', v.name);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            NULL;
        END;
    END LOOP;
END
$outbox$;
