-- The views under names from elsewhere stand on other views and on functions, which are about to be put in place anew. They are
-- made again at the end (names.sql). One that something of the application's stands on stays, and is replaced there.
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
