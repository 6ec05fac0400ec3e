-- schema.sql: what is in a file that may have no outbox, or one of another version.

-- has_table (name text): whether the database has anything of this name.
SELECT count(*) FROM sqlite_master WHERE name = :name;

-- foreign_objects (): the application's own triggers and indexes on our table. A migration that
-- rebuilds the table would drop them.
SELECT sql FROM sqlite_master
 WHERE tbl_name = 'outbox_event' AND type IN ('trigger', 'index') AND sql <> ''
   AND name NOT IN ('outbox_event_idempotency');

-- touch_log (): a first read makes SQLite create the write-ahead log.
SELECT 1 FROM outbox_meta LIMIT 1;
