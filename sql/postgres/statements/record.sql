-- What is in place now is recorded: its fingerprint, the fingerprints that it replaced, and the
-- list of functions.
INSERT INTO @schema@.meta (name, value)
SELECT 'functions_former', value
FROM @schema@.meta
WHERE name = 'functions' AND value <> '@fingerprint@'
ON CONFLICT (name) DO UPDATE SET value = array_to_string(
    (array_remove(string_to_array(meta.value, ' '), excluded.value) || excluded.value)
        [greatest(cardinality(string_to_array(meta.value, ' ')) - @former_max@, 0) + 1:],
    ' ');

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
WHERE p.pronamespace = '@schema@'::regnamespace
  AND p.proname = ANY ('{@functions@}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
