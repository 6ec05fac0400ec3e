-- unadopt undoes adopt: new rows of a table no longer become events. Existing events stay.
-- Returns whether the table was adopted.
CREATE OR REPLACE FUNCTION @schema@.unadopt(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    trigger_name text := @schema@._adopted(tab);
    f regprocedure;
BEGIN
    IF trigger_name IS NULL THEN
        RETURN false;
    END IF;
    -- The trigger's function is made for this table alone, and goes with it.
    SELECT t.tgfoid INTO f FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = tab AND t.tgname = trigger_name;
    EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, tab);
    EXECUTE format('DROP FUNCTION %s', f);
    -- Without events of new rows there is nothing to mark either.
    PERFORM @schema@._adopt_unmark(tab);
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.unadopt(text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.unadopt(text) IS 'undoes adopt';
