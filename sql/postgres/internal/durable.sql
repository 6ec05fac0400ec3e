-- What is handed out must be on disk first, whatever its producer has set (synchronous_commit). A
-- commit that waits for the disk takes along everything that was committed before it, so usually a
-- turn waits. It need not if all of that is on disk already, as it is where one event comes after
-- the other: the producer has just waited for it. The turn itself then reaches the disk with
-- whatever is committed next, or within a moment. A server that crashes before that has lost this
-- one turn of the consumer and no earlier one, because those were on disk: the claim it settled is
-- not settled, the one that it made was never made, and the events of both come again.

-- _on_disk returns the snapshot of this moment, as text, if all that it shows is on disk; NULL if
-- something may not be. The snapshot is taken before the end of the log is read, and that before it
-- is asked how much of the log was flushed. It has to be called before the transaction writes
-- anything, which would be in the log and not be flushed. A standby writes no log: there the turn
-- fails in its own way.
CREATE OR REPLACE FUNCTION @schema@._on_disk() RETURNS text
LANGUAGE sql VOLATILE
RETURN CASE WHEN pg_is_in_recovery() THEN NULL
            WHEN pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()
            THEN pg_current_snapshot()::text END;
COMMENT ON FUNCTION @schema@._on_disk() IS 'what is known to be on disk';

-- _commit_mode decides whether the commit of a turn waits for the disk, and returns the setting.
-- on_disk is what _on_disk has returned, showing the snapshot by which events are handed out. If
-- these are not the same, a transaction has ended in between. A standby that has to confirm commits
-- may not have what is on the disk of this server.
CREATE OR REPLACE FUNCTION @schema@._commit_mode(on_disk text, showing pg_snapshot) RETURNS text
LANGUAGE sql VOLATILE
RETURN CASE WHEN on_disk = showing::text AND current_setting('synchronous_standby_names') = ''
                THEN set_config('synchronous_commit', 'off', true)
            WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END;
COMMENT ON FUNCTION @schema@._commit_mode(text, pg_snapshot) IS
    'whether a commit waits for the disk';
