-- _refuse_version raises the error that tells a worker of another version why it gets nothing more.
-- knows is the version that the worker was written for.
CREATE OR REPLACE FUNCTION @schema@._refuse_version(knows int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    there int := (SELECT m.value::int FROM @schema@.meta m WHERE m.name = 'schema_version');
BEGIN
    -- What to do depends on which of the two is behind.
    IF there > knows THEN
        RAISE EXCEPTION 'this outbox was brought up to version %; this program knows %: update it',
            there, knows USING ERRCODE = 'OB005';
    END IF;
    RAISE EXCEPTION 'this outbox has version %; this program wants %: run `outbox migrate up`',
        there, knows USING ERRCODE = 'OB005';
END
$outbox$;
COMMENT ON FUNCTION @schema@._refuse_version(int) IS 'refuses a worker of another version';
