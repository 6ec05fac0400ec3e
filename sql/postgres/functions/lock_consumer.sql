-- lock_consumer: one transaction at a time hands out or settles work of a consumer. An advisory lock, because a row lock
-- would write. Whoever reads after it must do so in another statement, whose snapshot is newer than the lock: that takes
-- READ COMMITTED. Returns for how long it had to wait: the clock stood still meanwhile, as it does for a whole statement.
CREATE OR REPLACE FUNCTION @schema@.lock_consumer(consumer text) RETURNS interval
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := hashtextextended('@schema@ consumer ' || consumer, 0);
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the outbox works in READ COMMITTED, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002', HINT =
                  'SET default_transaction_isolation = ''read committed'' on this connection, or for its role (ALTER ROLE)';
    END IF;
    IF current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION 'the outbox cannot be worked on in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction',
            HINT = 'connect to the primary; BEGIN READ WRITE, or SET default_transaction_read_only = off on this connection, '
                   'or for its role (ALTER ROLE)';
    END IF;
    IF pg_try_advisory_xact_lock(k) THEN
        RETURN '0';
    END IF;
    PERFORM pg_advisory_xact_lock(k);
    RETURN clock_timestamp() - statement_timestamp();
END
$outbox$;
COMMENT ON FUNCTION @schema@.lock_consumer(text) IS 'serialises claims and settlements of a consumer';
