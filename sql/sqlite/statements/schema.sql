-- schema.sql: what is in a file that may have no outbox, or one of another version.

-- has_table (name text): whether the database has anything of this name.
SELECT count(*) FROM sqlite_master WHERE name = :name;

-- touch_log (): a first read makes SQLite create the write-ahead log.
SELECT 1 FROM outbox_meta LIMIT 1;
