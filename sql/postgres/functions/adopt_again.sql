-- adopt_again: brings the functions of adopted tables up to date, after this version makes an event of a row in another way. A
-- table that can no longer be adopted as it was (its columns changed) keeps what it has, and is told (see adopted_formerly).
CREATE OR REPLACE FUNCTION @schema@.adopt_again() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    a record;
    mapping jsonb;
BEGIN
    FOR a IN SELECT t.tgrelid::regclass AS tab, substr(split_part(p.prosrc, E'\n', 1), 4) AS mapping
             FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
             WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname LIKE 'adopted\_%' AND p.prosrc LIKE '-- {%' LOOP
        BEGIN
            mapping := '{"id": "", "created_at": ""}' || a.mapping::jsonb; -- what was not there then is not looked for
            PERFORM @schema@.adopt_trigger(a.tab, CASE WHEN mapping ? 'processed_at' THEN 'processed_at' ELSE 'debezium' END, mapping);
        EXCEPTION WHEN SQLSTATE 'OB003' OR SQLSTATE 'OB004' OR insufficient_privilege THEN
            RAISE WARNING 'table % has to be adopted again: %', a.tab, SQLERRM; -- `doctor` says so, too
        END;
    END LOOP;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt_again() FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt_again() IS 'brings the functions of adopted tables up to date';
