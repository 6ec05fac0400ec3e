-- Functions that an earlier version made and this one does not have are dropped, so that no call
-- has two to choose from. age() is above 0 for what no part of this transaction has written. An
-- outbox of version 1 has no list of its functions; there it is those with a name of ours. If
-- something of the application's depends on one, it stays, and validate reports it.
DO $outbox$
DECLARE
    former text[];
    f record;
BEGIN
    SELECT string_to_array(value, E'\n') INTO former
    FROM @schema@.meta
    WHERE name = 'functions_list';
    FOR f IN
        SELECT p.oid::regprocedure AS which
        FROM pg_proc p
        WHERE p.pronamespace = '@schema@'::regnamespace
          AND age(p.xmin) > 0
          AND CASE
                  WHEN former IS NULL
                  THEN ARRAY[p.proname, '_' || p.proname]::text[] && '{@functions@}'
                  ELSE p.proname || '(' || oidvectortypes(p.proargtypes) || ')' = ANY (former)
              END
    LOOP
        BEGIN
            EXECUTE format('DROP ROUTINE %s', f.which);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            NULL;
        END;
    END LOOP;

    -- Functions that are new, or were dropped and made again, have no grants: every role is given
    -- its part again, whole.
    PERFORM @schema@._give(part, r.rolname) FROM pg_roles r, @schema@.parts(r.rolname) part;
    PERFORM @schema@._adopt_again();
END
$outbox$;
