-- schema.sql: what is in a database that may have no outbox, or one of another version.

-- has_table (schema text, name text): whether the database has a table of this name.
SELECT count(*) FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name;

-- server (): what has to be right about the server.
SELECT @@version, @@log_bin, @@binlog_format,
       (SELECT variable_value FROM information_schema.global_variables
         WHERE variable_name = 'WSREP_ON'), @@max_allowed_packet;

-- put_meta (name text, value text): remembers which version is there.
INSERT INTO outbox_meta (name, value) VALUES (:name, :value)
    ON DUPLICATE KEY UPDATE value = VALUES(value);

-- meta (name text): what is remembered under a name.
SELECT value FROM outbox_meta WHERE name = :name;

-- lock_init (name text, patience int): one makes or changes the tables at a time.
SELECT GET_LOCK(:name, :patience);

-- unlock_init (name text): lets the next one.
SELECT RELEASE_LOCK(:name);
