-- adopted: the trigger that makes events of a table's rows; NULL: there is none.
CREATE OR REPLACE FUNCTION @schema@.adopted(tab regclass) RETURNS name
LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgname FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = $1 AND p.pronamespace = '@schema@'::regnamespace AND p.proname LIKE E'adopted\\_%'
$outbox$;
COMMENT ON FUNCTION @schema@.adopted(regclass) IS 'the trigger of an adopted table';
