-- finish runs after all functions and views are installed. It sets the functions' search_paths,
-- grants and revokes their use, and records what is installed.

-- A function without its own search_path uses its caller's, where another role could have created
-- objects that run with the caller's rights. Functions need no path if their names are bound
-- (RETURN, BEGIN ATOMIC), or all qualified and marked so. pg_temp is searched first unless listed
-- last.
DO $outbox$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS which FROM pg_catalog.pg_proc p
             WHERE p.pronamespace = '@schema@'::regnamespace
               AND p.proname = ANY ('{@all_functions@}')
               AND p.prosqlbody IS NULL AND p.prosrc NOT LIKE '%@named_mark@%' LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = @path@', f.which);
    END LOOP;

    -- Every role may call the functions that _open_to_all names, and no others.
    FOR f IN
        SELECT CASE WHEN x.open THEN 'GRANT EXECUTE ON ROUTINE %s TO PUBLIC'
                    ELSE 'REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC' END AS text,
               string_agg(x.which, ', ') AS which
        FROM (SELECT p.oid::regprocedure::text AS which,
                     p.proname = ANY (@schema@._open_to_all()) AS open,
                     EXISTS (SELECT 1
                             FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                             WHERE a.grantee = 0) AS is_open
              FROM pg_catalog.pg_proc p
              WHERE p.pronamespace = '@schema@'::regnamespace
                AND p.proname = ANY ('{@functions@}')) x
        WHERE x.open <> x.is_open
        GROUP BY x.open
    LOOP
        EXECUTE format(f.text, f.which);
    END LOOP;
END $outbox$;

-- The replaced fingerprint is added to the former ones, and the oldest ones are deleted.
INSERT INTO @schema@.meta (name, value)
SELECT 'functions_former', value FROM @schema@.meta
WHERE name = 'functions' AND value <> '@fingerprint@'
ON CONFLICT (name) DO UPDATE SET value = array_to_string(
    (array_remove(string_to_array(meta.value, ' '), excluded.value) || excluded.value)
        [greatest(cardinality(string_to_array(meta.value, ' ')) - @former_max@, 0) + 1:],
    ' ');

-- A fingerprint that is installed again no longer counts as former.
UPDATE @schema@.meta
SET value = array_to_string(array_remove(string_to_array(value, ' '), '@fingerprint@'), ' ')
WHERE name = 'functions_former';

INSERT INTO @schema@.meta (name, value)
SELECT 'functions', '@fingerprint@'
UNION ALL
SELECT 'functions_list',
       string_agg(p.proname || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')',
                  E'\n' ORDER BY 1)
FROM pg_catalog.pg_proc p
WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname = ANY ('{@functions@}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
