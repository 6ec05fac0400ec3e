-- _lock_consumer: one transaction at a time hands out or settles work of a consumer. It locks the consumer's row, which takes the
-- right to change it: an advisory lock could be taken by anybody who can connect. Whoever reads after it must do so in another
-- statement, whose snapshot is newer than the lock: that takes READ COMMITTED. A row lock is written, and takes a transaction
-- number: who only looks does without (see idle), and reads the head before (see claim_fresh). Returns for how long it had to
-- wait: the clock stood still meanwhile, as it does for a whole statement. Of a consumer there is not there is nothing to lock.
CREATE OR REPLACE FUNCTION @schema@._lock_consumer(consumer text) RETURNS interval
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    PERFORM @schema@._check_transaction();
    PERFORM 1 FROM @schema@.consumer c WHERE c.name = _lock_consumer.consumer FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND OR NOT EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = _lock_consumer.consumer) THEN
        RETURN '0';
    END IF;
    IF current_setting('outbox.nowait', true) = 'on' THEN -- see claim_batch
        RAISE EXCEPTION 'consumer "%" is locked by somebody else', consumer USING ERRCODE = 'lock_not_available';
    END IF;
    PERFORM @schema@._wait_for_consumer(consumer);
    RETURN clock_timestamp() - statement_timestamp();
END
$outbox$;
COMMENT ON FUNCTION @schema@._lock_consumer(text) IS 'serialises claims and settlements of a consumer';

-- _wait_for_consumer: waits for whoever has it, not for ever, and says who that is.
CREATE OR REPLACE FUNCTION @schema@._wait_for_consumer(consumer text) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
BEGIN
    PERFORM 1 FROM @schema@.consumer c WHERE c.name = _wait_for_consumer.consumer FOR NO KEY UPDATE;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'consumer "%" is locked by %', consumer, coalesce((SELECT h.who FROM @schema@.consumer c,
            LATERAL @schema@._holder(c.xmax) h WHERE c.name = _wait_for_consumer.consumer), 'a transaction that has just ended')
        USING ERRCODE = 'lock_not_available', HINT = 'end that; it is tried again';
END
$outbox$;
COMMENT ON FUNCTION @schema@._wait_for_consumer(text) IS 'waits for the lock of a consumer, and says who has it';

-- _holder: whose transaction that is, and since when, as far as this role may know; no row: it is over.
CREATE OR REPLACE FUNCTION @schema@._holder(x xid) RETURNS TABLE (who text, since timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT @schema@._session(k.pid), a.xact_start
    FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
    WHERE k.locktype = 'transactionid' AND k.transactionid = $1 AND k.granted
    UNION ALL
    SELECT format('prepared transaction %L of role "%s", since %s', p.gid, p.owner, to_char(p.prepared AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
           p.prepared
    FROM pg_catalog.pg_prepared_xacts p WHERE p.transaction = $1
    LIMIT 1
$outbox$;
COMMENT ON FUNCTION @schema@._holder(xid) IS 'whose transaction that is';

-- _session: a session, for people to read. Since when it is at it is known to its own role and to those who may see statistics.
CREATE OR REPLACE FUNCTION @schema@._session(pid int) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT concat(format('pid %s, role "%s", application "%s"', a.pid, a.usename, left(a.application_name, 60)),
                  to_char(coalesce(a.xact_start, a.state_change, a.backend_start) AT TIME ZONE 'UTC', '", since" YYYY-MM-DD HH24:MI:SS "UTC"'))
    FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1
$outbox$;
COMMENT ON FUNCTION @schema@._session(int) IS 'a session, for people to read';

-- _check_transaction: refuses one in which nothing can be handed out.
CREATE OR REPLACE FUNCTION @schema@._check_transaction() RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_transaction() IS 'refuses a transaction in which nothing can be handed out';
