-- The doorbell. A NOTIFY on every commit makes all commits queue up. So a worker that goes to sleep holds an advisory lock,
-- and whoever emits tries to share it until its commit: refused means that somebody sleeps, so it notifies; granted means
-- that nobody does, and nobody can go to sleep before the commit is visible. A transaction that has notified cannot be
-- prepared for two-phase commit: where that is in use, nobody rings and everybody polls, unless outbox.doorbell is 'on'.
CREATE OR REPLACE FUNCTION @schema@.bell_works() RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE coalesce(current_setting('outbox.doorbell', true), '')
               WHEN 'on' THEN true WHEN 'off' THEN false
               ELSE current_setting('max_prepared_transactions') = '0' END;
COMMENT ON FUNCTION @schema@.bell_works() IS 'whether an emit wakes a sleeping worker';

CREATE OR REPLACE FUNCTION @schema@.bell_key() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended('@schema@ bell', 0);
COMMENT ON FUNCTION @schema@.bell_key() IS 'the advisory lock a sleeping worker holds';

CREATE OR REPLACE FUNCTION @schema@.bell_channel() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'outbox_' || substr(md5('@schema@'), 1, 16);
COMMENT ON FUNCTION @schema@.bell_channel() IS 'the channel that wakes sleeping workers';

CREATE OR REPLACE FUNCTION @schema@.ring() RETURNS trigger
LANGUAGE plpgsql AS $outbox$
BEGIN -- Every name has its schema. Two conditions, because a second term in the first would be got ready for every event.
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(@schema@.bell_key()) THEN
        IF @schema@.bell_works() THEN
            PERFORM pg_catalog.pg_notify(@schema@.bell_channel(), '');
        END IF;
    END IF;
    RETURN NULL;
END
$outbox$;
COMMENT ON FUNCTION @schema@.ring() IS 'rings the doorbell if somebody sleeps';
CREATE OR REPLACE TRIGGER ring BEFORE INSERT ON @schema@.event FOR EACH STATEMENT EXECUTE FUNCTION @schema@.ring();

-- bell_sleep: a worker that found nothing wants to sleep; it must have done LISTEN before, and must look once more after.
-- 'holder': it has the lock, whoever emits will ring. 'listener': another worker has it, and will tell when it gets up
-- (second lock). 'busy': a transaction has emitted and not committed yet: look again shortly. listening: it was a listener
-- until now, and asks whether there is a holder still.
CREATE OR REPLACE FUNCTION @schema@.bell_sleep(listening boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@.bell_key();
BEGIN
    IF pg_try_advisory_lock(k) THEN
        IF listening THEN
            PERFORM pg_advisory_unlock_shared(k # 1);
        END IF;
        RETURN 'holder';
    END IF;
    IF listening OR pg_try_advisory_lock_shared(k # 1) THEN
        -- Only now: one that gets up after this will find the second lock taken.
        IF EXISTS (SELECT 1 FROM pg_catalog.pg_locks x WHERE x.locktype = 'advisory' AND x.objsubid = 1 AND x.granted
                   AND x.mode = 'ExclusiveLock' AND x.classid = ((k >> 32) & 4294967295)::oid AND x.objid = (k & 4294967295)::oid
                   AND x.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())) THEN
            RETURN 'listener';
        END IF;
        PERFORM pg_advisory_unlock_shared(k # 1);
    END IF;
    RETURN 'busy';
END
$outbox$;
COMMENT ON FUNCTION @schema@.bell_sleep(boolean) IS 'a worker goes to sleep';

-- bell_wake: it has work to do; nobody needs to ring for it. Others that sleep beside it are told.
CREATE OR REPLACE FUNCTION @schema@.bell_wake(holder boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    k bigint := @schema@.bell_key();
BEGIN
    IF NOT holder THEN
        PERFORM pg_advisory_unlock_shared(k # 1);
        RETURN;
    END IF;
    PERFORM pg_advisory_unlock(k);
    IF pg_try_advisory_lock(k # 1) THEN
        PERFORM pg_advisory_unlock(k # 1);
    ELSE
        PERFORM pg_notify(@schema@.bell_channel(), '');
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.bell_wake(boolean) IS 'a worker gets up';

-- bell_ring: for what is no emit but makes work all the same: a consumer resumed, dead letters sent back.
CREATE OR REPLACE FUNCTION @schema@.bell_ring() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF @schema@.bell_works() THEN
        PERFORM pg_notify(@schema@.bell_channel(), '');
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@.bell_ring() IS 'wakes whoever sleeps';
