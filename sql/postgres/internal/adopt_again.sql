-- _adopt_again brings the trigger functions of adopted tables up to date. init calls it, because a
-- new version may make an event of a row in another way. A table that can no longer be adopted as
-- it was, because its columns have changed, keeps the function it has, with a warning (see
-- _adopted_formerly).
CREATE OR REPLACE FUNCTION @schema@._adopt_again() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    a record;
BEGIN
    -- The first line of such a function is a comment with its mapping: -- {"id": "id", ...}.
    FOR a IN SELECT t.tgrelid::regclass AS tab
             FROM pg_catalog.pg_trigger t
             JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
             WHERE p.pronamespace = '@schema@'::regnamespace
               AND p.proname LIKE 'adopted\_%'
               AND p.prosrc LIKE '-- {%' LOOP
        BEGIN
            PERFORM @schema@._adopt_anew(a.tab);
        EXCEPTION WHEN SQLSTATE 'OB003' OR SQLSTATE 'OB004' OR insufficient_privilege THEN
            -- One such table must not keep init from installing the rest; `doctor` reports it, too.
            RAISE WARNING 'table % has to be adopted again: %', a.tab, SQLERRM;
        END;
    END LOOP;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_again() FROM PUBLIC;
COMMENT ON FUNCTION @schema@._adopt_again() IS 'brings the functions of adopted tables up to date';

-- _adopt_anew makes the trigger of an adopted table anew, with the mapping of columns that it has.
-- Returns whether that changed anything; false also for a table that is not adopted.
CREATE OR REPLACE FUNCTION @schema@._adopt_anew(tab regclass) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    -- the function's first line, without the "-- "
    mapping jsonb := (SELECT substr(split_part(p.prosrc, E'\n', 1), 4)
                      FROM pg_catalog.pg_trigger t
                      JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                      WHERE t.tgrelid = tab AND t.tgname = @schema@._adopted(tab));
    shape text := CASE WHEN mapping ? 'processed_at' OR NOT mapping ? 'aggregate_type'
                       THEN 'processed_at' ELSE 'debezium' END;
BEGIN
    IF mapping IS NULL THEN
        RETURN false;
    END IF;
    -- An optional column that the table did not have then is not looked for now.
    mapping := '{"id": "", "created_at": "", "processed_at": ""}' || mapping;
    RETURN @schema@._adopt_trigger(tab, shape, mapping);
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_anew(regclass) FROM PUBLIC;
COMMENT ON FUNCTION @schema@._adopt_anew(regclass) IS 'makes the trigger of an adopted table anew';
