-- drop_mark stops marking the rows of an adopted table. New rows become events as before. Returns
-- whether rows were being marked.
CREATE OR REPLACE FUNCTION @schema@.drop_mark(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
BEGIN
    IF NOT @schema@._adopt_unmark(tab) THEN
        RETURN false;
    END IF;
    -- For the mark the trigger records which row became which event. It is made anew without that.
    PERFORM @schema@._adopt_anew(tab);
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.drop_mark(text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.drop_mark(text) IS 'rows of an adopted table are marked no longer';
