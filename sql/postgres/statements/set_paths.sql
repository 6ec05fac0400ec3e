-- set_paths gives our functions a search_path. Without one, a function looks names up with the
-- search_path of its caller. A role that may create objects there could have them run in place of
-- those that the function means, with the caller's rights.
--
-- Two kinds of functions need no path, and can be inlined: those whose names were bound when they
-- were made (RETURN, BEGIN ATOMIC), and those that qualify every name, and are marked as such.
-- pg_temp is named last, because it comes first if it is not named.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure AS which
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = '@schema@'::regnamespace
          AND p.proname = ANY ('{@all_functions@}')
          AND p.prosqlbody IS NULL
          AND p.prosrc NOT LIKE '%@named_mark@%'
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = @path@', f.which);
    END LOOP;
END
$outbox$;
