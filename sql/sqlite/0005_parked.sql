-- The outbox in a SQLite database, version 5: a worker remembers which keys are held up.

-- Changes whenever events of the consumer are parked or are parked no longer: a worker that has read which keys are held up need not
-- read them again while it is the same.
ALTER TABLE outbox_consumer ADD COLUMN parked_stamp INTEGER NOT NULL DEFAULT 0;

UPDATE outbox_meta SET value = '5' WHERE name = 'schema_version';
