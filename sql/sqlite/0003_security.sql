-- The outbox in a SQLite database, version 3: nobody can do more than they were given.

UPDATE outbox_meta SET value = '3' WHERE name = 'schema_version';
