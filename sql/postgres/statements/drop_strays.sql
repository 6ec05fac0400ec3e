-- drop_strays drops functions that an earlier version created and this one lacks, so that no call
-- is ambiguous. age() is above 0 for rows that this transaction has not written. A function
-- that an object of the application depends on stays, and validate reports it.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS which FROM pg_proc p
             WHERE p.pronamespace = '@schema@'::regnamespace AND age(p.xmin) > 0
               AND p.proname || '(' || oidvectortypes(p.proargtypes) || ')' IN (
                   SELECT string_to_table(m.value, E'\n') FROM @schema@.meta m
                   WHERE m.name = 'functions_list') LOOP
        BEGIN
            EXECUTE format('DROP ROUTINE %s', f.which);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            NULL;
        END;
    END LOOP;

    -- New functions, and those created again, have no grants: all parts are granted again.
    PERFORM @schema@._give(part, r.rolname) FROM pg_roles r, @schema@.parts(r.rolname) part;
    PERFORM @schema@._adopt_again();
END $outbox$;
