-- _make_right runs rebaseline for a caller that holds the lock of a consumer. why says what is
-- wrong, for the error message if that cannot be put right now.
CREATE OR REPLACE FUNCTION @schema@._make_right(why text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- rebaseline takes this lock first, and then those of all consumers. Waiting for it here could
    -- be a deadlock: whoever has it may be waiting for the consumer that the caller has locked.
    BEGIN
        LOCK TABLE @schema@.setting IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'the outbox in schema % is being made right: %', '@schema@', why
            USING ERRCODE = 'lock_not_available', HINT = 'try again in a moment';
    END;

    IF NOT @schema@.rebaseline() THEN
        RAISE EXCEPTION 'the outbox in schema % has to be made right (%), but rebaseline finds '
            'nothing to do', '@schema@', why
            USING ERRCODE = 'OB006', HINT = 'please report this, with the rows of table lane';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._make_right(text) IS 'rebaseline, under the lock of a consumer';
