-- The outbox in a SQLite database, version 4: the contract, to the letter.

UPDATE outbox_meta SET value = '4' WHERE name = 'schema_version';
