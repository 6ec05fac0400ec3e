-- The doorbell. A NOTIFY in every transaction would make all commits queue up. So a worker that
-- goes to sleep holds an advisory lock, and whoever emits tries to share it until its commit. If
-- that is refused, somebody sleeps, and it notifies. If it is granted, nobody sleeps, and nobody
-- can go to sleep before the commit is visible.

-- bell_works says whether an emit wakes a sleeping worker. A transaction that has notified cannot
-- be prepared for two-phase commit: where that is in use, nobody rings, and workers look every few
-- milliseconds instead, unless outbox.doorbell is 'on'.
CREATE OR REPLACE FUNCTION @schema@.bell_works() RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE coalesce(current_setting('outbox.doorbell', true), '')
            WHEN 'on' THEN true
            WHEN 'off' THEN false
            ELSE current_setting('max_prepared_transactions') = '0' END;
COMMENT ON FUNCTION @schema@.bell_works() IS 'whether an emit wakes a sleeping worker';

-- _bell_key returns the key of the first lock, which a sleeper holds and an emitter shares. That of
-- the second, which tells the holder that others sleep beside it, differs from it in the lowest
-- bit.
CREATE OR REPLACE FUNCTION @schema@._bell_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended('@schema@ bell', 0);
COMMENT ON FUNCTION @schema@._bell_key() IS 'the advisory lock a sleeping worker holds';

-- bell_channel returns the channel on which sleeping workers are notified.
CREATE OR REPLACE FUNCTION @schema@.bell_channel() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'outbox_' || substr(md5('@schema@'), 1, 16);
COMMENT ON FUNCTION @schema@.bell_channel() IS 'the channel that wakes sleeping workers';

-- _bell_locks returns who else has a lock of the doorbell now. second: it is the second lock.
-- alone: the lock is held, not shared. business: the session has a reason to have it. That matters
-- because anybody who can connect can take these locks. The outbox must be open to the role of the
-- session. To hold a lock alone, the role must be one that works, not only emits; to share the
-- first lock, the transaction must really have inserted.
CREATE OR REPLACE FUNCTION @schema@._bell_locks()
RETURNS TABLE (pid int, second boolean, alone boolean, business boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    k bigint := @schema@._bell_key();
BEGIN
    -- These functions are what is behind the views pg_locks and pg_stat_activity. The views take a
    -- session that asks for the first time twice as long.
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._bell_locks() IS 'who has a lock of the doorbell';

-- _bell_squatters describes the sessions that have a lock of the doorbell, and no business with it.
CREATE OR REPLACE FUNCTION @schema@._bell_squatters() RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT string_agg(DISTINCT @schema@._session(x.pid), '; ')
    FROM @schema@._bell_locks() x WHERE x.business IS NOT TRUE
$outbox$;
COMMENT ON FUNCTION @schema@._bell_squatters() IS
    'who has a lock of the doorbell, and no business with it';

-- _bell_squatted says whether somebody who has no business with it holds the first lock alone, so
-- that no worker can. The answer is in _bell_locks as well, but this is asked by those who emit:
-- the shorter query takes a session half as long when it asks for the first time.
CREATE OR REPLACE FUNCTION @schema@._bell_squatted() RETURNS boolean
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    k bigint := @schema@._bell_key();
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._bell_squatted() IS 'whether a stranger holds the doorbell';

-- _bell_second names the current second.
CREATE OR REPLACE FUNCTION @schema@._bell_second() RETURNS text
LANGUAGE sql VOLATILE
RETURN floor(extract(epoch FROM clock_timestamp()))::text;
COMMENT ON FUNCTION @schema@._bell_second() IS 'which second it is';

-- _bell_is_a_workers says whether a sleeping worker holds the first lock, which is taken. If it is
-- held by somebody who has no business with the bell, nobody sleeps by it, and workers look by
-- themselves; otherwise a stranger could make every commit queue up. To find out who holds a lock
-- takes longer than the emit itself, so a session that found a worker there does not ask again
-- within the same second.
CREATE OR REPLACE FUNCTION @schema@._bell_is_a_workers() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    second text := @schema@._bell_second();
BEGIN
    IF current_setting('outbox.bell_found', true) = second THEN
        RETURN true;
    END IF;
    IF @schema@._bell_squatted() THEN
        RETURN false;
    END IF;
    PERFORM set_config('outbox.bell_found', second, false);
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._bell_is_a_workers() IS 'whether a worker sleeps by the doorbell';

-- _bell_ring_at_emit rings the doorbell if it is a worker who sleeps by it, and returns what it is
-- given: it is part of the default of event.xid, for those who are refused the lock. Each emit of a
-- trickle comes through here, so all is said in expressions: a statement takes several times as
-- long. What _bell_is_a_workers remembers is read here already.
CREATE OR REPLACE FUNCTION @schema@._bell_ring_at_emit(mine xid8) RETURNS xid8
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE -- Every name has its schema.
    rung pg_catalog.bool;
BEGIN
    IF @schema@.bell_works()
       AND (pg_catalog.current_setting('outbox.bell_found', true)
                OPERATOR(pg_catalog.=) @schema@._bell_second()
            OR @schema@._bell_is_a_workers()) THEN
        rung := pg_catalog.pg_notify(@schema@.bell_channel(), '') IS NOT NULL;
    END IF;
    RETURN mine;
END
$outbox$;
COMMENT ON FUNCTION @schema@._bell_ring_at_emit(xid8) IS 'rings the doorbell if somebody sleeps';

-- An emit tries to share the lock in the default of event.xid, which is evaluated before any other,
-- and which no producer may set. It is planned with the INSERT: a trigger that does the same takes
-- three times as long, and with a WHEN even longer, because that is read and planned for every
-- INSERT.
ALTER TABLE @schema@.event ALTER xid SET DEFAULT
    CASE WHEN pg_try_advisory_xact_lock_shared(@schema@._bell_key()) THEN pg_current_xact_id()
         ELSE @schema@._bell_ring_at_emit(pg_current_xact_id()) END;
-- bell_sleep is called by a worker that found nothing and wants to sleep. The worker must have done
-- LISTEN before, and must look once more after. listening: it was a listener until now, and asks
-- whether there still is a holder. Returns
--     'holder'    it has the lock, and whoever emits will ring;
--     'listener'  another worker has the lock, and will tell when it gets up (second lock);
--     'busy'      a transaction has emitted and not committed yet: look again shortly;
--     'squatted'  somebody is in the way who has no business here: look now and then.
CREATE OR REPLACE FUNCTION @schema@.bell_sleep(listening boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@._bell_key();
    held boolean;    -- by a worker
    shared boolean;  -- by one who emits
    strange boolean; -- either lock, by one who has no business with it
BEGIN
    IF pg_try_advisory_lock(k) THEN
        IF listening THEN
            PERFORM pg_advisory_unlock_shared(k # 1);
        END IF;
        RETURN 'holder';
    END IF;
    IF NOT listening THEN
        listening := pg_try_advisory_lock_shared(k # 1);
    END IF;

    -- Only now: a holder that gets up after this will find the second lock taken.
    SELECT coalesce(bool_or(x.alone AND x.business AND NOT x.second), false),
           coalesce(bool_or(NOT x.alone AND x.business AND NOT x.second), false),
           coalesce(bool_or(x.business IS NOT TRUE), false)
    INTO held, shared, strange
    FROM @schema@._bell_locks() x;
    IF listening AND held THEN
        RETURN 'listener';
    END IF;
    IF listening THEN
        PERFORM pg_advisory_unlock_shared(k # 1);
    END IF;
    RETURN CASE WHEN strange AND NOT shared THEN 'squatted' ELSE 'busy' END;
END
$outbox$;
COMMENT ON FUNCTION @schema@.bell_sleep(boolean) IS 'a worker goes to sleep';

-- bell_wake is called by a worker that gets up: from now on nobody needs to ring for it. holder: it
-- had the first lock. It then notifies those that sleep beside it, so that one of them takes its
-- place.
CREATE OR REPLACE FUNCTION @schema@.bell_wake(holder boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@._bell_key();
BEGIN
    IF NOT holder THEN
        PERFORM pg_advisory_unlock_shared(k # 1);
        RETURN;
    END IF;
    PERFORM pg_advisory_unlock(k);
    -- Nobody shares the second lock if it can be had alone.
    IF pg_try_advisory_lock(k # 1) THEN
        PERFORM pg_advisory_unlock(k # 1);
    ELSE
        PERFORM pg_notify(@schema@.bell_channel(), '');
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.bell_wake(boolean) IS 'a worker gets up';

-- _bell_ring_all wakes every sleeping worker for work that comes without an emit: a consumer was
-- resumed, dead letters were sent back, settings changed. All of them have to look at everything,
-- because a look for new events would find none.
CREATE OR REPLACE FUNCTION @schema@._bell_ring_all() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF @schema@.bell_works() THEN
        PERFORM pg_notify(@schema@.bell_channel(), 'all');
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._bell_ring_all() IS 'wakes whoever sleeps';
