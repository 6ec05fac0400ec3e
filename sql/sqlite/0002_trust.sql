-- The outbox in a SQLite database, version 2: what 0.1.0 left to be assumed is checked and kept.

-- Which version of the outbox the program that claims was written for. Programs of version 1 say nothing, and must stop: to them
-- a constraint that fails is a reason to try again, but an error of this kind is the end, and the path is in its text.
ALTER TABLE outbox_claim ADD COLUMN knows INTEGER;
CREATE TRIGGER outbox_claim_knows BEFORE INSERT ON outbox_claim WHEN NEW.knows IS NULL BEGIN
    SELECT json_extract('{}', CASE WHEN NEW.knows IS NULL
        THEN 'this outbox was brought up to version 2 or later; this program knows 1: update it' ELSE '$' END);
END;

UPDATE outbox_meta SET value = '2' WHERE name = 'schema_version';
