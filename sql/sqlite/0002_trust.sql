-- The outbox in a SQLite database, version 2: what 0.1.0 left to be assumed is checked and kept.

-- Which version of the outbox the program that claims was written for. Programs of version 1 say nothing, and must stop: to them
-- a constraint that fails is a reason to try again, but an error of this kind is the end, and the path is in its text.
ALTER TABLE outbox_claim ADD COLUMN knows INTEGER;
CREATE TRIGGER outbox_claim_knows BEFORE INSERT ON outbox_claim WHEN NEW.knows IS NULL BEGIN
    SELECT json_extract('{}', CASE WHEN NEW.knows IS NULL
        THEN 'this outbox was brought up to version 2 or later; this program knows 1: update it' ELSE '$' END);
END;

-- ---- settings: what a consumer was given, and what that replaced ----

-- Every settings a consumer has had since they first changed, the newest with the highest generation: those that count. A
-- worker may not bring back what was replaced, or one that was restarted with its old file would pass over events that the
-- newer filter lets through. Rows come with the first change; of one that never changed there is nothing to remember.
CREATE TABLE outbox_setting (
    consumer   TEXT NOT NULL,
    generation INTEGER NOT NULL,
    events     TEXT NOT NULL,
    predicate  TEXT NOT NULL,
    ordering   TEXT NOT NULL,
    lanes      INTEGER NOT NULL,
    since      INTEGER NOT NULL,   -- ms
    by_whom    TEXT,               -- NULL: nobody wrote it down
    PRIMARY KEY (consumer, generation)
) WITHOUT ROWID;

-- Which outbox this is: a copy of it has the same, another one never.
INSERT INTO outbox_meta (name, value) VALUES ('identity', lower(hex(randomblob(16))));

UPDATE outbox_meta SET value = '2' WHERE name = 'schema_version';
