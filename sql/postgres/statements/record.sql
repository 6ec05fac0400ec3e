-- record writes down what is in place now: its fingerprint, the fingerprints that it replaced, and
-- the list of functions.

-- The fingerprint in place so far becomes the last of the former ones, of which some are kept.
INSERT INTO @schema@.meta (name, value)
SELECT 'functions_former', value
FROM @schema@.meta
WHERE name = 'functions' AND value <> '@fingerprint@'
ON CONFLICT (name) DO UPDATE SET value = array_to_string(
    (array_remove(string_to_array(meta.value, ' '), excluded.value) || excluded.value)
        [greatest(cardinality(string_to_array(meta.value, ' ')) - @former_max@, 0) + 1:],
    ' ');

-- If the new one was in place before, it no longer counts as former.
UPDATE @schema@.meta
SET value = array_to_string(array_remove(string_to_array(value, ' '), '@fingerprint@'), ' ')
WHERE name = 'functions_former';

-- The new one, and its functions.
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
