-- The outbox in a PostgreSQL database, version 2: what 0.1.0 left to be assumed is checked and kept.
--
-- The tables are locked while this runs, but for what stands before a line `-- @locked@`. Roles need no rights here: init gives
-- every role its part again (internal/rights.sql).

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
CREATE FUNCTION @schema@.note_drop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; -- internal/note_drop.sql
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
DROP FUNCTION IF EXISTS @schema@.take_over(@schema@.consumer, bigint, int, timestamptz);
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

-- Where a lane's numbers come from: the cluster, the sequence of event numbers, and the file that is in. See internal/home.sql.
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
        EXECUTE format('GRANT UPDATE ON SEQUENCE %s.epoch TO %s', '@schema@', role);
    END LOOP;
END
$outbox$;
DROP FUNCTION IF EXISTS @schema@.claim_fresh(@schema@.consumer, @schema@.lane, text, int, interval, timestamptz, bigint, int,
    text, bigint, bigint);

-- ---- limits: what an event may be, on every way in (docs/limits.md) ----

-- Domains, for the reason given in 0001. A constraint's name is what a producer reads when it is refused: it says which column,
-- and what the limit is. The columns get their domains while those allow everything, and NOT VALID leaves alone what is there
-- already: so nothing is rewritten or looked through, and events of an older version stay as they are, and deliverable.
ALTER DOMAIN @schema@.event_type RENAME TO event_type_1; -- of varchar(255), which counts characters and does not say whose they are
CREATE DOMAIN @schema@.event_type AS text;
CREATE DOMAIN @schema@.event_aggregate_type AS text;
CREATE DOMAIN @schema@.event_aggregate_id AS text;
CREATE DOMAIN @schema@.event_payload AS json;
CREATE DOMAIN @schema@.event_tenant AS text;
CREATE DOMAIN @schema@.event_not_before AS timestamptz;
CREATE DOMAIN @schema@.event_created_at AS timestamptz;

-- Times without an end stopped every consumer that came upon one. They become the latest, or the earliest, that there is.
UPDATE @schema@.event SET not_before = least(greatest(not_before, 'epoch'), clock_timestamp() + interval '3653 days')
    WHERE NOT not_before BETWEEN 'epoch' AND clock_timestamp() + interval '3653 days';
UPDATE @schema@.event SET created_at = least(greatest(created_at, 'epoch'), clock_timestamp())
    WHERE NOT created_at BETWEEN 'epoch' AND clock_timestamp() + interval '1 day';
UPDATE @schema@.dead SET not_before = least(greatest(not_before, 'epoch'), clock_timestamp() + interval '3653 days')
    WHERE NOT not_before BETWEEN 'epoch' AND clock_timestamp() + interval '3653 days';
UPDATE @schema@.dead SET created_at = least(greatest(created_at, 'epoch'), clock_timestamp())
    WHERE NOT created_at BETWEEN 'epoch' AND clock_timestamp() + interval '1 day';
UPDATE @schema@.parked SET due_at = least(greatest(due_at, 'epoch'), clock_timestamp() + interval '3653 days')
    WHERE NOT due_at BETWEEN 'epoch' AND clock_timestamp() + interval '3653 days';

-- A column that a view shows does not change its type. So views, the application's own among them, are taken down and put up
-- again as they were: with their owner, options, rights and comments.
DO $outbox$
DECLARE
    saved jsonb;
    v record;
    g record;
BEGIN
    WITH RECURSIVE above (oid, depth) AS (
        SELECT '@schema@.event'::regclass::oid, 0
        UNION
        SELECT r.ev_class, a.depth + 1 FROM above a
        JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.oid
                                   AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid AND r.ev_class <> a.oid)
    SELECT jsonb_agg(jsonb_build_object(
               'name', format('%I.%I', c.relnamespace::regnamespace::text, c.relname), 'owner', c.relowner, 'depth', x.depth,
               'query', pg_get_viewdef(c.oid), 'options', array_to_string(c.reloptions, ', '), 'rights', c.relacl::text[],
               'comment', obj_description(c.oid, 'pg_class')))
    INTO saved FROM (SELECT a.oid, max(a.depth) AS depth FROM above a GROUP BY a.oid) x
    JOIN pg_catalog.pg_class c ON c.oid = x.oid AND c.relkind = 'v';

    FOR v IN SELECT * FROM jsonb_to_recordset(saved) AS s (name text, depth int) ORDER BY s.depth DESC LOOP
        EXECUTE format('DROP VIEW %s', v.name);
    END LOOP;
    DROP POLICY tenant ON @schema@.event;
    ALTER TABLE @schema@.event
        ALTER type TYPE @schema@.event_type,
        ALTER aggregate_type TYPE @schema@.event_aggregate_type,
        ALTER aggregate_id TYPE @schema@.event_aggregate_id,
        ALTER payload TYPE @schema@.event_payload,
        ALTER tenant TYPE @schema@.event_tenant,
        ALTER not_before TYPE @schema@.event_not_before,
        ALTER created_at TYPE @schema@.event_created_at;
    CREATE POLICY tenant ON @schema@.event
        USING (coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant));
    FOR v IN SELECT * FROM jsonb_to_recordset(saved) AS s (name text, owner oid, depth int, query text, options text, rights text[],
                                                           comment text) ORDER BY s.depth LOOP
        EXECUTE format('CREATE VIEW %s %s AS %s', v.name, 'WITH (' || v.options || ')', v.query);
        EXECUTE format('COMMENT ON VIEW %s IS %L', v.name, v.comment);
        FOR g IN SELECT a.privilege_type, a.is_grantable, CASE WHEN a.grantee = 0 THEN 'PUBLIC'
                        ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
                 FROM aclexplode(v.rights::aclitem[]) a WHERE a.grantee <> v.owner LOOP
            EXECUTE format('GRANT %s ON %s TO %s %s', g.privilege_type, v.name, g.grantee,
                           CASE WHEN g.is_grantable THEN 'WITH GRANT OPTION' END);
        END LOOP;
        IF v.owner <> (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = v.name::regclass) THEN
            EXECUTE format('ALTER VIEW %s OWNER TO %I', v.name, pg_get_userbyid(v.owner));
        END IF;
    END LOOP;
END
$outbox$;

-- A check is got ready for every INSERT, which for each call in it takes as long as the call. What is seldom given is looked at by
-- functions of ours: they are called only if it is there, and one is got ready sooner than a condition. Names are written out in
-- them, because a SET of the search_path takes longer than all the rest.
CREATE FUNCTION @schema@.headers_fit(headers json) RETURNS boolean -- not jsonb: of a name that comes twice it has the last only
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name has its schema.
    IF pg_catalog.json_typeof(headers) OPERATOR(pg_catalog.<>) 'object'
       OR pg_catalog.octet_length(headers::pg_catalog.text) OPERATOR(pg_catalog.>) 65536 THEN
        RETURN false;
    END IF;
    RETURN (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<=) 64
                   AND pg_catalog.count(*) FILTER (WHERE pg_catalog.json_typeof(h.value) OPERATOR(pg_catalog.<>) 'string'
                       OR h.key OPERATOR(pg_catalog.!~) '^[^\u0001-\u001f\u007f-\u009f]+$') OPERATOR(pg_catalog.=) 0
            FROM pg_catalog.json_each(headers) AS h);
END
$outbox$;
COMMENT ON FUNCTION @schema@.headers_fit(json) IS 'whether headers are an object of strings, and not too many';

CREATE FUNCTION @schema@.payload_fits(payload json) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE AS $outbox$
DECLARE -- Every name has its schema.
    size pg_catalog.int8 := pg_catalog.octet_length(pg_catalog.json_send(payload));
    allowed pg_catalog.text;
BEGIN
    IF size OPERATOR(pg_catalog.<=) 1048576 THEN
        RETURN true;
    END IF;
    allowed := pg_catalog.current_setting('outbox.max_payload', true);
    IF allowed IS NULL OR allowed OPERATOR(pg_catalog.=) '' THEN
        RETURN false;
    END IF;
    RETURN size OPERATOR(pg_catalog.<=) LEAST(pg_catalog.pg_size_bytes(allowed), 67108864);
END
$outbox$;
COMMENT ON FUNCTION @schema@.payload_fits(json) IS 'whether a payload is within 1 MiB, or outbox.max_payload, or 64 MiB';

CREATE FUNCTION @schema@.tenant_fits(tenant text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name has its schema.
    RETURN pg_catalog.octet_length(tenant) OPERATOR(pg_catalog.<=) 1024
       AND tenant OPERATOR(pg_catalog.~) '^[^\u0001-\u001f\u007f-\u009f]+$';
END
$outbox$;
COMMENT ON FUNCTION @schema@.tenant_fits(text) IS 'whether it can be the name of a tenant';

CREATE FUNCTION @schema@.not_before_fits(not_before timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name has its schema.
    RETURN not_before OPERATOR(pg_catalog.>=) pg_catalog.timestamptz 'epoch' AND not_before OPERATOR(pg_catalog.<=)
           (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) interval '87672 hours');
END
$outbox$;
COMMENT ON FUNCTION @schema@.not_before_fits(timestamptz) IS 'whether an event can wait until then';

-- The characters that are white space, or control something, are named: a class would depend on the database''s locale.
ALTER DOMAIN @schema@.event_type ADD CONSTRAINT "type: 1 to 255 bytes, no white space, no control character"
    CHECK (octet_length(VALUE) <= 255 AND
           VALUE ~ '^[^\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$') NOT VALID;
DROP DOMAIN @schema@.event_type_1;
ALTER DOMAIN @schema@.event_aggregate_type
    ADD CONSTRAINT "aggregate_type: 1 to 1024 bytes, no '/', no control character"
    CHECK (octet_length(VALUE) <= 1024 AND VALUE ~ '^[^\u0001-\u001f\u007f-\u009f/]+$') NOT VALID;
ALTER DOMAIN @schema@.event_aggregate_id ADD CONSTRAINT "aggregate_id: 1 to 1024 bytes, no control character"
    CHECK (octet_length(VALUE) <= 1024 AND VALUE ~ '^[^\u0001-\u001f\u007f-\u009f]+$') NOT VALID;
ALTER DOMAIN @schema@.event_tenant ADD CONSTRAINT "tenant: 1 to 1024 bytes, no control character"
    CHECK (@schema@.tenant_fits(VALUE)) NOT VALID;
-- What is kept in 4 KiB is at most 1 MiB, also if it is compressed: LZ4 makes 255 bytes of one, and pglz fewer.
ALTER DOMAIN @schema@.event_payload ADD CONSTRAINT "payload: at most 1 MiB, or outbox.max_payload, or 64 MiB"
    CHECK (pg_column_size(VALUE) <= 4096 OR @schema@.payload_fits(VALUE)) NOT VALID;
ALTER DOMAIN @schema@.event_headers ADD CONSTRAINT "headers: an object of at most 64 strings, at most 64 KiB"
    CHECK (@schema@.headers_fit(VALUE)) NOT VALID;
ALTER DOMAIN @schema@.event_headers DROP CONSTRAINT event_headers_check;
-- Hours, because a day's length depends on the time zone, which takes time to find out.
ALTER DOMAIN @schema@.event_not_before ADD CONSTRAINT "not_before: from 1970 to ten years ahead"
    CHECK (@schema@.not_before_fits(VALUE)) NOT VALID;
ALTER DOMAIN @schema@.event_created_at ADD CONSTRAINT "created_at: from 1970 to one day ahead"
    CHECK (VALUE BETWEEN 'epoch' AND clock_timestamp() + interval '24 hours') NOT VALID;
-- The one rule about two columns, so no domain can say it.
ALTER TABLE @schema@.event ADD CONSTRAINT "aggregate_type and aggregate_id: both or neither"
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)) NOT VALID;

-- A shorter way to the same: every call in it would be got ready for every event. See internal/uuid7.sql.
ALTER TABLE @schema@.event ALTER id SET DEFAULT overlay(gen_random_uuid()::text,
    lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12, '0') || '7', 1, 15)::uuid;

-- These take more types now, each in functions of its own.
DROP FUNCTION IF EXISTS @schema@.emit(text, text, text, json, json, text, bigint, timestamptz, text);
DROP FUNCTION IF EXISTS @schema@.emit_once(text, text, text, json, json, text, bigint, timestamptz, text);
DROP FUNCTION IF EXISTS @schema@.handle_once(text, text, text);

UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version';
