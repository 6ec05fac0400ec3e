-- The outbox in a PostgreSQL database, version 2: what 0.1.0 left to be assumed is checked and kept.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (functions/rights.sql).

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

-- ---- what is shown is true ----

-- Where a consumer started: what these show came before it, and was never its own. NULL: made by 0.1.0, which did not say.
-- start_also: seqs besides, named one by one where a snapshot no longer can (see rebase_shown).
ALTER TABLE @schema@.consumer ADD COLUMN start_seen pg_snapshot, ADD COLUMN start_floor bigint,
    ADD COLUMN start_also bigint[];

-- How single events ended for a consumer, where positions and filters do not tell: a row per dropped dead letter, or per event
-- that a worker passed over and said so. Both are rare, and the row goes with its event (see trim).
CREATE TABLE @schema@.ended (
    seq      bigint NOT NULL,
    consumer text NOT NULL,
    state    text NOT NULL CHECK (state IN ('dropped', 'skipped', 'delivered')),
    PRIMARY KEY (seq, consumer)
);
COMMENT ON TABLE @schema@.ended IS 'how single events ended, where positions and filters do not tell';

-- Filters that a consumer had, each with how far its lanes had got when it was replaced: what was handed out by then was judged
-- by it. n grows; of those that cover an event the first counts. epoch: claims up to it were made under this filter. No event
-- past head was handed out under it, so trimming knows when nobody can ask any more.
CREATE TABLE @schema@.former_filter (
    consumer  text NOT NULL,
    n         bigint NOT NULL,
    lane      int NOT NULL,
    lanes     int NOT NULL,
    events    text NOT NULL,
    type_like text[],
    predicate text NOT NULL,
    epoch     bigint NOT NULL,
    seen      pg_snapshot NOT NULL,
    floor     bigint NOT NULL,
    target    pg_snapshot,
    pos       bigint NOT NULL,
    also      bigint[],                       -- as start_also
    head      bigint NOT NULL,
    PRIMARY KEY (consumer, n, lane)
);
COMMENT ON TABLE @schema@.former_filter IS 'filters that consumers had, and how far they had got with them';

ALTER TABLE @schema@.ended ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.former_filter ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.ended USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.former_filter USING (consumer IN (SELECT c.name FROM @schema@.consumer c));

-- A dead letter that is deleted, by whatever way, was dropped, unless it had been sent back and is being settled.
CREATE FUNCTION @schema@.note_drop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; -- functions/note_drop.sql
CREATE TRIGGER note_drop AFTER DELETE ON @schema@.dead FOR EACH ROW WHEN (NOT OLD.retrying)
    EXECUTE FUNCTION @schema@.note_drop();

-- They say more than they did: functions whose answer changes are made anew.
DROP FUNCTION IF EXISTS @schema@.trim(interval, int, interval);
DROP FUNCTION IF EXISTS @schema@.trim_dry_run(interval, interval);
DROP FUNCTION IF EXISTS @schema@.claimed(text, bigint);

-- Whose fault a failure is: since when an event has failed, and whether it is known to be the event's own (others got through
-- beside it). Until it is known, a failure uses up no attempt: see src/engine/evidence.h.
ALTER TABLE @schema@.parked ADD COLUMN failing_since timestamptz, ADD COLUMN proven boolean NOT NULL DEFAULT false;
UPDATE @schema@.parked SET failing_since = failed_at WHERE failed_at IS NOT NULL;
DROP FUNCTION IF EXISTS @schema@.park(text, bigint, bigint, int, timestamptz, interval, boolean, boolean, text);
DROP FUNCTION IF EXISTS @schema@.claimed(text, bigint);

-- ---- the database moves, or is changed ----

-- Events are UTF-8. In another encoding some could not be stored, and neither could the error of one that failed.
DO $outbox$
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'database "%" has the encoding %, and an outbox needs UTF8', current_database(),
            current_setting('server_encoding') USING ERRCODE = 'OB004',
            HINT = 'make one with CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
END
$outbox$;

-- Where a lane's numbers come from: the cluster, the sequence of event numbers, and the file that is in. See functions/home.sql.
ALTER TABLE @schema@.lane ADD COLUMN home text;
COMMENT ON COLUMN @schema@.lane.home IS 'the place it knows (see here()); NULL: it has not looked yet';
-- A claim below claims_from was made while the sequence of epochs was behind: nobody saw it, so nobody took it over.
UPDATE @schema@.lane l SET claims_from = k.epoch
FROM (SELECT x.consumer, min(x.epoch) AS epoch FROM @schema@.claim x GROUP BY x.consumer) k
WHERE k.consumer = l.consumer AND k.epoch < l.claims_from;
-- Roles that were given a part before: who takes epochs may move them on.
DO $outbox$
DECLARE
    role text;
BEGIN
    FOR role IN SELECT DISTINCT x.grantee::regrole::text FROM pg_catalog.pg_class c, LATERAL pg_catalog.aclexplode(c.relacl) x
                WHERE x.grantee <> 0 AND x.grantee <> c.relowner AND c.oid = '@schema@.claim'::regclass AND x.privilege_type = 'INSERT' LOOP
        EXECUTE format('GRANT UPDATE ON SEQUENCE @schema@.epoch TO %s', role);
    END LOOP;
END
$outbox$;
DROP FUNCTION IF EXISTS @schema@.claim_fresh(@schema@.consumer, @schema@.lane, text, int, interval, timestamptz, bigint, int,
    text, bigint, bigint);

UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version';
