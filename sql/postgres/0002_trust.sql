-- The outbox in a PostgreSQL database, version 2: what 0.1.0 left to be assumed is checked and kept.

UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version';
