-- The outbox in a PostgreSQL database, version 2: what 0.1.0 left to be assumed is checked and kept.

-- ---- settings: what a consumer was given, and what that replaced ----

-- Every settings a consumer has had since they first changed, the newest with the highest generation: those that count. A
-- worker may not bring back what was replaced, or one that was restarted with its old file would pass over events that the
-- newer filter lets through. Rows come with the first change; of one that never changed there is nothing to remember.
CREATE TABLE @schema@.setting (
    consumer   text NOT NULL,
    generation int NOT NULL,
    events     text NOT NULL,
    predicate  text NOT NULL,
    ordering   text NOT NULL,
    lanes      int NOT NULL,
    since      timestamptz NOT NULL,
    by_whom    text,                          -- NULL: nobody wrote it down
    PRIMARY KEY (consumer, generation)
);
COMMENT ON TABLE @schema@.setting IS 'the settings a consumer has had';
ALTER TABLE @schema@.setting ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.setting USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
DROP FUNCTION IF EXISTS @schema@.register(text, text, text, text, int, text, text);

UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version';
