-- The outbox in a PostgreSQL database, version 4: the contract, to the letter.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (internal/rights.sql).

-- ---- which part a role has is told by the functions it may call ----

-- See functions/parts.sql. An outbox of version 1 or 2 has none of those: here they are, to be filled by init, for the roles that
-- 0003 left with a part. That was told by what they may read, which others may, too: an operator could read the sequences as well.
DO $outbox$
DECLARE
    r record;
BEGIN
    IF to_regprocedure('@schema@.operator_pause(text, boolean)') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE FUNCTION @schema@.operator_pause(consumer text, paused boolean) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE FUNCTION @schema@.worker_report(consumer text, said text) RETURNS void LANGUAGE sql AS '';
    REVOKE EXECUTE ON FUNCTION @schema@.operator_pause(text, boolean), @schema@.worker_report(text, text) FROM PUBLIC;
    FOR r IN SELECT DISTINCT g.rolname FROM pg_catalog.pg_roles g JOIN @schema@.worker w ON w.role = g.rolname LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s.worker_report(text, text) TO %I', '@schema@', r.rolname);
    END LOOP;
    FOR r IN SELECT g.rolname FROM pg_catalog.pg_roles g JOIN pg_catalog.pg_class c ON g.oid <> c.relowner
             CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) x
             WHERE c.oid IN ('@schema@.idempotency'::regclass, '@schema@.epoch'::regclass) AND x.grantee = g.oid AND x.privilege_type = 'SELECT'
             GROUP BY g.rolname HAVING count(DISTINCT c.oid) = 2 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s.operator_pause(text, boolean) TO %I', '@schema@', r.rolname);
    END LOOP;
END
$outbox$;

-- ---- retention counts from delivery ----

-- When a consumer got past an event is told by samples: at that time it was done with every event up to seq that `seen` shows,
-- and with all before it. trim takes one now and then (internal/note_passed.sql), and forgets those nobody asks for any more, so
-- there are about 170 for a consumer, however many events there are. Above its sample an event counts as not delivered yet:
-- to lose samples keeps events longer, and deletes none too early.
CREATE TABLE @schema@.passed (
    consumer text NOT NULL,
    seq      bigint NOT NULL,
    seen     pg_snapshot NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (consumer, seq, at)
);
COMMENT ON TABLE @schema@.passed IS 'samples of when each consumer was done with which events: retention goes by them';
ALTER TABLE @schema@.passed ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.passed USING (consumer IN (SELECT c.name FROM @schema@.consumer c));

-- ---- an idempotency key belongs to the event (C0.3), and is taken by whatever inserts it (C2.12) ----

-- The inbox goes by the key of an event that has one. Events that are there have none here, and go on by their id, so that what
-- handlers have recorded for them counts. A plain INSERT can give its event a key: a trigger takes it, and leaves the row out if
-- it is known (internal/take_key.sql). That looks at the key as well: a constraint would be got ready for every INSERT.
ALTER TABLE @schema@.event ADD COLUMN idempotency_key text;
ALTER TABLE @schema@.dead ADD COLUMN idempotency_key text;
COMMENT ON COLUMN @schema@.event.idempotency_key IS 'an INSERT with a key that is known stores no second event; NULL: none';

-- ---- ids: they grow within a millisecond, too ----

-- The clock in parts of 1/4096 ms, of which a microsecond has four: 12 digits of milliseconds and 3 of their fraction, with the
-- version between them (RFC 9562, 6.2, method 3), in place of the first 15 of a random UUID. See internal/uuid7.sql.
ALTER TABLE @schema@.event ALTER id SET DEFAULT overlay(gen_random_uuid()::text, overlay(
    lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0'), '7', 13, 0), 1, 18)::uuid;

-- ---- adopted tables whose rows are marked (C4.9) ----

-- A table of the application's own whose rows are marked as processed once `consumer` has had them: its column col is set. keys tell
-- rows apart. The id is what rows and triggers call it by, since a name changes, and an oid in a restore. error: why its
-- rows could not be marked the last time, since error_at.
CREATE TABLE @schema@.marking (
    id       int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tab      regclass NOT NULL UNIQUE,
    consumer text NOT NULL,
    col      name NOT NULL,
    keys     name[] NOT NULL,
    error    text,
    error_at timestamptz
);
COMMENT ON TABLE @schema@.marking IS 'adopted tables whose rows are marked when a consumer has had them';
ALTER TABLE @schema@.marking ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.marking USING (consumer IN (SELECT c.name FROM @schema@.consumer c));

-- Which row of such a table became which event, until it is marked: never many more than wait for delivery.
CREATE TABLE @schema@.adopted_row (
    marking int NOT NULL,
    seq     bigint NOT NULL,
    key     text[] NOT NULL,                  -- its keys, as text
    PRIMARY KEY (marking, seq)
);
COMMENT ON TABLE @schema@.adopted_row IS 'which row of an adopted table became which event, until it is marked';
ALTER TABLE @schema@.adopted_row ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.adopted_row USING (marking IN (SELECT m.id FROM @schema@.marking m));

-- Whether rows are marked when it has had them: a worker's turn looks at no more than this.
ALTER TABLE @schema@.consumer ADD COLUMN marks boolean NOT NULL DEFAULT false;

UPDATE @schema@.meta SET value = '4' WHERE name = 'schema_version';
