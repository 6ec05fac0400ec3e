-- A function looks names up with the search_path of its caller. Whoever may create something there
-- could have it run in place of what the function means, with the caller's rights. So every
-- function gets a search_path of its own, except those bound to what they name when they were made
-- (RETURN, BEGIN ATOMIC), and those that write every name with its schema and say so: either can be
-- inlined, and costs nothing. pg_temp comes last, because it comes first if it is not named.
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
