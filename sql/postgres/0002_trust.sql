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
-- Roles that were given a part before this table was there.
DO $outbox$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT DISTINCT x.grantee::regrole AS role
             FROM pg_catalog.pg_class c, LATERAL pg_catalog.aclexplode(c.relacl) x
             WHERE c.oid IN ('@schema@.claim'::regclass, '@schema@.consumer'::regclass) AND x.grantee <> 0
               AND x.grantee <> c.relowner AND x.privilege_type IN ('INSERT', 'DELETE') LOOP
        EXECUTE format('GRANT SELECT, INSERT, DELETE ON @schema@.setting TO %s', g.role);
    END LOOP;
END
$outbox$;
DROP FUNCTION IF EXISTS @schema@.register(text, text, text, text, int, text, text);

UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version';
