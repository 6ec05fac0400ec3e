-- doctor.sql: checks for problems of an outbox and of its server.

-- settings: durability and exactness depend on these settings.
SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@read_only,
       @@auto_increment_increment, @@sql_mode LIKE '%STRICT_%', @@max_allowed_packet;

-- other_engines: tables of the outbox without transactions.
SELECT table_name, engine FROM information_schema.tables
 WHERE table_schema = :schema AND table_name LIKE 'outbox\\_%' AND table_type = 'BASE TABLE'
   AND engine <> 'InnoDB';

-- @our_triggers@: those that every outbox has. In a literal, the outbox's table name would be
-- prefixed with the database's, hence CONCAT.
CONCAT('outbox', '_event_inserted'), CONCAT('outbox', '_event_numbered'),
CONCAT('outbox', '_event_deleted'), CONCAT('outbox', '_event_updated'),
CONCAT('outbox', '_dead_deleted');

-- count_triggers: without its triggers, events are not handed out or can be lost.
SELECT count(*) FROM information_schema.triggers
 WHERE trigger_schema = :schema AND trigger_name IN (@our_triggers@);

-- @runs_as_nobody@: a trigger t runs as an account that does not exist. Requires the privilege to
-- read mysql.user.
t.trigger_schema = :schema
   AND t.definer NOT IN (
       SELECT CONCAT(User, IF(is_role = 'Y', '', CONCAT(CHAR(64 USING utf8mb3), Host)))
         FROM mysql.user);

-- lost_definers: such accounts among the outbox's triggers, those of adopted tables included.
SELECT t.definer, min(t.trigger_name) FROM information_schema.triggers t
 WHERE @runs_as_nobody@
   AND (t.trigger_name IN (@our_triggers@)
        OR t.trigger_name LIKE CONCAT('outbox', '\\_adopted\\_%'))
 GROUP BY t.definer;

-- lost_adopted: adopted tables with such a trigger, and the columns in the order of enum field.
SELECT a.source, JSON_VALUE(a.mapping, '$.id'), JSON_VALUE(a.mapping, '$.type'),
       JSON_VALUE(a.mapping, '$.payload'), JSON_VALUE(a.mapping, '$.created_at'),
       JSON_VALUE(a.mapping, '$.processed_at'), JSON_VALUE(a.mapping, '$.aggregate_type'),
       JSON_VALUE(a.mapping, '$.aggregate_id'), JSON_VALUE(a.mapping, '$.tenant')
  FROM outbox_adopted a JOIN information_schema.triggers t ON t.event_object_table = a.source
 WHERE @runs_as_nobody@ AND t.trigger_name LIKE CONCAT('outbox', '\\_adopted\\_%')
 ORDER BY a.source;

-- unmarked: of the newest events, those that have neither a seq nor a marker.
SELECT count(*)
  FROM (SELECT nr FROM outbox_event ORDER BY nr DESC LIMIT :max) e
  LEFT JOIN outbox_order o ON o.nr = e.nr
 WHERE o.nr IS NULL AND e.nr NOT IN (SELECT nr FROM outbox_fresh);

-- next_numbers: the next numbers of events and of markers; rows with high ones may be deleted.
SELECT table_name = CONCAT('outbox', '_event'), auto_increment FROM information_schema.tables
 WHERE table_schema = :schema
   AND table_name IN (CONCAT('outbox', '_event'), CONCAT('outbox', '_fresh'))
 ORDER BY table_name;

-- not_marked: adopted tables whose rows could not be marked.
SELECT source, consumer, error FROM outbox_marking WHERE error IS NOT NULL ORDER BY source;

-- ahead_of_head: a position beyond the head was requested, or the sequencer was set back.
SELECT count(*) FROM outbox_order WHERE seq >= (SELECT next FROM outbox_sequencer WHERE one = 1);

-- lost_ordered: places of undelivered events whose event is gone: trim deletes both.
SELECT count(*)
  FROM (SELECT seq, nr FROM outbox_order
         WHERE seq > coalesce((SELECT min(position) FROM outbox_lane), 0) ORDER BY seq LIMIT :max) o
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.nr = o.nr);

-- lost_fresh: markers of deleted events.
SELECT count(*) FROM (SELECT nr FROM outbox_fresh LIMIT :max) f
 WHERE NOT EXISTS (SELECT 1 FROM outbox_event e WHERE e.nr = f.nr);

-- count_guards: the guard of events against TRUNCATE.
SELECT count(*) FROM information_schema.tables
 WHERE table_schema = :schema AND table_name = CONCAT('outbox', '_guard');

-- old_transactions: open transactions hide their events. Requires the privilege PROCESS.
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW())
  FROM information_schema.innodb_trx
 WHERE trx_started < NOW() - INTERVAL :seconds SECOND ORDER BY trx_started LIMIT 5;

-- parts_of: whether an account, or a role, which has no host, is a producer, a consumer and an
-- operator. Each part is recognized by one right that the others lack. Requires the privilege to
-- read the server's system tables. In a literal, the outbox's table name would be prefixed with the
-- database's, hence CONCAT.
SELECT EXISTS (SELECT 1 FROM mysql.procs_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Routine_name = CONCAT('outbox', '_emit')),
       EXISTS (SELECT 1 FROM mysql.procs_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Routine_name = CONCAT('outbox', '_wait')),
       EXISTS (SELECT 1 FROM mysql.tables_priv
                WHERE Db = :schema AND User = :user AND Host IN ('', :host)
                  AND Table_name = CONCAT('outbox', '_meta')
                  AND FIND_IN_SET('Insert', Table_priv));

-- has_table: whether the database has a table of this name.
SELECT count(*) FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name;

-- server: settings that the server must have for an outbox.
SELECT @@version, @@log_bin, @@binlog_format,
       (SELECT variable_value FROM information_schema.global_variables
         WHERE variable_name = 'WSREP_ON'), @@max_allowed_packet;

-- put_meta: records a value, such as the installed version.
INSERT INTO outbox_meta (name, value) VALUES (:name, :value)
    ON DUPLICATE KEY UPDATE value = VALUES(value);

-- meta: the value of a name.
SELECT value FROM outbox_meta WHERE name = :name;

-- lock_init: one session at a time creates or changes the tables.
SELECT GET_LOCK(:name, :patience);

-- unlock_init: the next session may start.
SELECT RELEASE_LOCK(:name);
