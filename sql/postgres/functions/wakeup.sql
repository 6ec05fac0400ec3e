-- Wake-ups. A NOTIFY in every transaction would serialize all commits. So a sleeping worker holds
-- an advisory lock, and every emit tries to share it until its transaction commits. If refused, a
-- worker sleeps, and the producer notifies. If granted, none sleeps until the commit.

-- Whether an emit wakes a sleeping worker. A transaction that has notified cannot be prepared for
-- two-phase commit: where that is possible, producers do not notify, and workers poll every few
-- milliseconds instead, unless outbox.wakeup is 'on'.
CREATE OR REPLACE FUNCTION @schema@.wakeup_works() RETURNS boolean LANGUAGE sql STABLE
RETURN CASE coalesce(current_setting('outbox.wakeup', true), '')
            WHEN 'on' THEN true
            WHEN 'off' THEN false
            ELSE current_setting('max_prepared_transactions') = '0' END;
COMMENT ON FUNCTION @schema@.wakeup_works() IS 'whether an emit wakes a sleeping worker';

-- The key of the first lock, which a sleeping worker holds and producers share. The second, by
-- which the holder knows of other sleepers, differs in the lowest bit.
CREATE OR REPLACE FUNCTION @schema@._wakeup_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended('@schema@ wakeup', 0);

-- The channel on which sleeping workers are notified.
CREATE OR REPLACE FUNCTION @schema@.wakeup_channel() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'outbox_' || substr(md5('@schema@'), 1, 16);
COMMENT ON FUNCTION @schema@.wakeup_channel() IS 'the channel that wakes sleeping workers';

-- Lists the other sessions that hold a wake-up lock. second: it is the second lock. alone: it is
-- exclusive. business: the session has a reason to hold it; any role that can connect could take
-- it. The role must have USAGE on the schema; for an exclusive lock it must be able to consume; to
-- share the first lock, its transaction must have inserted events.
CREATE OR REPLACE FUNCTION @schema@._wakeup_locks()
RETURNS TABLE (pid int, second boolean, alone boolean, business boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    k bigint := @schema@._wakeup_key();
BEGIN
    -- The views pg_locks and pg_stat_activity double the time of the first query of a session.
    RETURN QUERY
    WITH x AS MATERIALIZED (
        SELECT * FROM pg_catalog.pg_lock_status() y
        WHERE y.granted
          AND y.database = (SELECT me.datid
                            FROM pg_catalog.pg_stat_get_activity(pg_backend_pid()) me))
    SELECT x.pid, x.objid <> (k & 4294967295)::oid, x.mode = 'ExclusiveLock',
           has_schema_privilege(a.usesysid, '@schema@'::regnamespace, 'USAGE')
           AND CASE WHEN x.mode = 'ExclusiveLock'
                    THEN has_table_privilege(a.usesysid, '@schema@.lane'::regclass, 'SELECT')
                    ELSE x.objid <> (k & 4294967295)::oid
                         OR EXISTS (SELECT 1 FROM x z
                                    WHERE z.pid = x.pid
                                      AND z.relation = '@schema@.event'::regclass
                                      AND z.mode IN ('RowExclusiveLock', 'AccessExclusiveLock')) END
    FROM x LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(x.pid) a ON true
    -- An advisory lock of one bigint: its upper half is classid, its lower half objid.
    WHERE x.locktype = 'advisory' AND x.objsubid = 1
      AND x.classid = ((k >> 32) & 4294967295)::oid
      AND x.objid IN ((k & 4294967295)::oid, ((k # 1) & 4294967295)::oid)
      AND x.pid <> pg_backend_pid();
END $outbox$;

-- Describes the unrelated sessions that hold a wake-up lock.
CREATE OR REPLACE FUNCTION @schema@._wakeup_foreign_holders() RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT string_agg(DISTINCT @schema@._session(x.pid), '; ')
    FROM @schema@._wakeup_locks() x WHERE x.business IS NOT TRUE
$outbox$;

-- Whether an unrelated session holds the first lock, so that no worker can. For producers, where
-- _wakeup_locks takes twice as long in the first query of a session.
CREATE OR REPLACE FUNCTION @schema@._wakeup_lock_is_foreign() RETURNS boolean
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    k bigint := @schema@._wakeup_key();
BEGIN
    RETURN EXISTS (
        SELECT 1
        FROM pg_catalog.pg_lock_status() x
        LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(x.pid) a ON true
        WHERE x.granted AND x.locktype = 'advisory' AND x.mode = 'ExclusiveLock' AND x.objsubid = 1
          AND x.classid = ((k >> 32) & 4294967295)::oid AND x.objid = (k & 4294967295)::oid
          AND x.pid <> pg_backend_pid()
          AND x.database = (SELECT me.datid
                            FROM pg_catalog.pg_stat_get_activity(pg_backend_pid()) me)
          AND (has_schema_privilege(a.usesysid, '@schema@'::regnamespace, 'USAGE')
               AND has_table_privilege(a.usesysid, '@schema@.lane'::regclass, 'SELECT'))
              IS NOT TRUE);
END $outbox$;

-- The time for which _wakeup_wanted caches its result.
CREATE OR REPLACE FUNCTION @schema@._wakeup_second() RETURNS text LANGUAGE sql VOLATILE
RETURN floor(extract(epoch FROM clock_timestamp()))::text;

-- Whether the first lock, which was refused, is held by a sleeping worker. If an unrelated session
-- holds it, producers must not notify: it could serialize all commits. Finding the holder takes
-- longer than the emit, so the result is cached for a second.
CREATE OR REPLACE FUNCTION @schema@._wakeup_wanted() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    second text := @schema@._wakeup_second();
BEGIN
    IF current_setting('outbox.wakeup_checked', true) = second THEN RETURN true; END IF;
    IF @schema@._wakeup_lock_is_foreign() THEN RETURN false; END IF;
    PERFORM set_config('outbox.wakeup_checked', second, false);
    RETURN true;
END $outbox$;

-- Notifies if a worker sleeps, and returns its argument, for the default of event.xid. At a low
-- rate every emit runs it, so it consists of expressions, which are several times as fast as a
-- statement, and first reads what _wakeup_wanted has cached.
CREATE OR REPLACE FUNCTION @schema@._wakeup_notify(mine xid8) RETURNS xid8
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE -- Every name is schema-qualified.
    notified pg_catalog.bool;
BEGIN
    IF @schema@.wakeup_works()
       AND (pg_catalog.current_setting('outbox.wakeup_checked', true)
                OPERATOR(pg_catalog.=) @schema@._wakeup_second()
            OR @schema@._wakeup_wanted()) THEN
        notified := pg_catalog.pg_notify(@schema@.wakeup_channel(), '') IS NOT NULL;
    END IF;
    RETURN mine;
END $outbox$;

-- An emit tries to share the lock in the default of event.xid, which is evaluated before all others
-- and which no producer may set. A trigger takes three times as long, and longer still with a WHEN.
ALTER TABLE @schema@.event ALTER xid SET DEFAULT
    CASE WHEN pg_try_advisory_xact_lock_shared(@schema@._wakeup_key()) THEN pg_current_xact_id()
         ELSE @schema@._wakeup_notify(pg_current_xact_id()) END;

-- wakeup_sleep is called by a worker that found nothing, after LISTEN; it must poll once more
-- after. listening: it has been a listener, and checks whether there still is a holder. Returns
--
--     'holder'    this worker holds the lock, and producers will notify;
--     'listener'  another worker holds the lock, and will notify when it wakes (second lock);
--     'busy'      a transaction has emitted but not committed: poll again soon;
--     'foreign'   an unrelated session holds the lock: poll at intervals.
CREATE OR REPLACE FUNCTION @schema@.wakeup_sleep(listening boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@._wakeup_key();
    held boolean;    -- by a worker
    shared boolean;  -- by a producer
    is_foreign boolean; -- an unrelated session holds either lock
BEGIN
    IF pg_try_advisory_lock(k) THEN
        IF listening THEN PERFORM pg_advisory_unlock_shared(k # 1); END IF;
        RETURN 'holder';
    END IF;
    listening := CASE WHEN listening THEN true ELSE pg_try_advisory_lock_shared(k # 1) END;

    -- Only now: a holder that wakes from here on finds the second lock taken.
    SELECT coalesce(bool_or(x.alone AND x.business AND NOT x.second), false),
           coalesce(bool_or(NOT x.alone AND x.business AND NOT x.second), false),
           coalesce(bool_or(x.business IS NOT TRUE), false)
    INTO held, shared, is_foreign
    FROM @schema@._wakeup_locks() x;
    IF listening AND held THEN RETURN 'listener'; END IF;
    PERFORM pg_advisory_unlock_shared(k # 1) WHERE listening;
    RETURN CASE WHEN is_foreign AND NOT shared THEN 'foreign' ELSE 'busy' END;
END $outbox$;
COMMENT ON FUNCTION @schema@.wakeup_sleep(boolean) IS 'lets a worker sleep until it is notified';

-- wakeup_release is called by a worker that wakes. holder: it holds the first lock, and notifies
-- the listeners, so that one of them takes it.
CREATE OR REPLACE FUNCTION @schema@.wakeup_release(holder boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@._wakeup_key();
BEGIN
    IF NOT holder THEN
        PERFORM pg_advisory_unlock_shared(k # 1);
        RETURN;
    END IF;
    PERFORM pg_advisory_unlock(k);
    -- No session listens if the second lock is free.
    IF pg_try_advisory_lock(k # 1) THEN
        PERFORM pg_advisory_unlock(k # 1);
    ELSE
        PERFORM pg_notify(@schema@.wakeup_channel(), '');
    END IF;
END $outbox$;
COMMENT ON FUNCTION @schema@.wakeup_release(boolean) IS 'a worker wakes and gives up its lock';

-- Wakes every sleeping worker when work arises without an emit. The payload tells each worker to
-- check all its consumers, because a poll for new events would find none.
CREATE OR REPLACE FUNCTION @schema@._wakeup_notify_all() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    PERFORM pg_notify(@schema@.wakeup_channel(), 'all') WHERE @schema@.wakeup_works();
END $outbox$;
