-- Locks a consumer, so that one transaction at a time hands out or settles its events. Returns how
-- long it waited, because _clock stands still during a statement. A consumer that does not exist is
-- ignored. It is a row lock: any role that can connect could take an advisory lock. Afterwards the
-- caller must read in another statement, with a newer snapshot, which requires READ COMMITTED.
--
-- A row lock takes a transaction number. So a turn that only polls does not lock (see _idle), and
-- the head is read before it (see _claim_fresh).
CREATE OR REPLACE FUNCTION @schema@._lock_consumer(consumer text, brief boolean DEFAULT false)
RETURNS interval LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    PERFORM @schema@._check_transaction();
    PERFORM 1 FROM @schema@.consumer c
    WHERE c.name = _lock_consumer.consumer
    FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND
       OR NOT EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = _lock_consumer.consumer) THEN
        RETURN '0';
    END IF;
    IF NOT @schema@._wait_for_consumer(consumer, brief) THEN RETURN NULL; END IF;
    RETURN clock_timestamp() - statement_timestamp();
END $outbox$;

-- Waits for the lock of a consumer: for 5 s, or 1 s in a session that many consumers share
-- (outbox.brief); then it raises an error that names the session holding the lock. If the caller
-- can do without (brief), it waits 100 ms, long enough for the turn of another worker, or not at
-- all in a shared session, and then returns false.
CREATE OR REPLACE FUNCTION @schema@._wait_for_consumer(consumer text, brief boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    shared boolean := coalesce(current_setting('outbox.brief', true) = 'on', false);
BEGIN
    IF brief AND shared THEN
        RETURN false;
    ELSIF brief OR shared THEN -- until the function returns
        PERFORM set_config('lock_timeout', CASE WHEN brief THEN '100ms' ELSE '1s' END, true);
    END IF;
    PERFORM 1 FROM @schema@.consumer c
    WHERE c.name = _wait_for_consumer.consumer
    FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    IF brief THEN RETURN false; END IF;
    -- xmax is the transaction that holds the row lock.
    RAISE EXCEPTION 'consumer "%" is locked by %', consumer,
        coalesce((SELECT h.who
                  FROM @schema@.consumer c, LATERAL @schema@._holder(c.xmax) h
                  WHERE c.name = _wait_for_consumer.consumer),
                 'a transaction that has just ended')
        USING ERRCODE = 'lock_not_available',
              HINT = 'end that transaction; workers retry automatically';
END $outbox$;

-- Describes the session of transaction x and when it began, as far as this role may know. It
-- returns no row if the transaction is over.
CREATE OR REPLACE FUNCTION @schema@._holder(x xid) RETURNS TABLE (who text, since timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT @schema@._session(k.pid), a.xact_start
    FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
    WHERE k.locktype = 'transactionid' AND k.transactionid = x AND k.granted
    UNION ALL
    -- A prepared transaction keeps its locks, and has no session.
    SELECT format('prepared transaction %L of role "%s", since %s', p.gid, p.owner,
                  to_char(p.prepared AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
           p.prepared
    FROM pg_catalog.pg_prepared_xacts p WHERE p.transaction = x
    LIMIT 1
$outbox$;

-- Describes a session for messages. The time is left out if this role may not see it: only the
-- session's own role and roles that may read statistics can.
CREATE OR REPLACE FUNCTION @schema@._session(pid int) RETURNS text LANGUAGE sql STABLE AS $outbox$
    SELECT concat(format('pid %s, role "%s", application "%s"',
                         a.pid, a.usename, left(a.application_name, 60)),
                  to_char(coalesce(a.xact_start, a.state_change, a.backend_start)
                              AT TIME ZONE 'UTC',
                          '", since" YYYY-MM-DD HH24:MI:SS "UTC"'))
    FROM pg_catalog.pg_stat_activity a WHERE a.pid = _session.pid
$outbox$;

-- Raises an error in a transaction that cannot hand out events. Above READ COMMITTED, a read after
-- the lock would still use the transaction's old snapshot.
CREATE OR REPLACE FUNCTION @schema@._check_transaction() RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the outbox requires READ COMMITTED, not %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002',
                  HINT = 'SET default_transaction_isolation = ''read committed'' on this '
                         'connection, or for its role (ALTER ROLE)';
    END IF;
    IF current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION 'events cannot be claimed or settled in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction',
                  HINT = 'connect to the primary; BEGIN READ WRITE, '
                         'or SET default_transaction_read_only = off on this connection, '
                         'or for its role (ALTER ROLE)';
    END IF;
END $outbox$;
