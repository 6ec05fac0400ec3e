-- lock_consumer: one transaction at a time hands out or settles work of a consumer. An advisory lock, because a row lock
-- would write. Whoever reads after it must do so in another statement, whose snapshot is newer than the lock: that takes
-- READ COMMITTED.
CREATE OR REPLACE FUNCTION @schema@.lock_consumer(consumer text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the outbox works in READ COMMITTED, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002', HINT = 'SET default_transaction_isolation = ''read committed'' on this connection';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('@schema@ consumer ' || consumer, 0));
END
$outbox$;
COMMENT ON FUNCTION @schema@.lock_consumer(text) IS 'serialises claims and settlements of a consumer';
