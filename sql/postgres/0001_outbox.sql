-- The outbox in a PostgreSQL database: types and tables. It may share the database with the application's own.
--
-- @schema@ stands for the schema, quoted as an identifier; right after a single quote it is also quoted for a literal.
--
-- To change anything here: until the first release, edit this file. After it, add a file 0002_*.sql that alters the objects of
-- this one and ends with UPDATE @schema@.meta SET value = '2' WHERE name = 'schema_version', list it in meson.build beside this
-- one, and raise PG_SCHEMA_VERSION; never edit a migration that was released. It runs while the tables are locked, except for
-- the statements before a line `-- @locked@`. Keep the order of columns: functions build rows of these types by position.
-- Functions and views are not migrations: they are in separate files, and every `outbox init` reinstalls them, and grants every
-- role its part again (functions/grants.sql).

-- Events are UTF-8. In another encoding, some events and error texts could not be stored.
DO $outbox$
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'database "%" has the encoding %, and an outbox needs UTF8', current_database(),
            current_setting('server_encoding') USING ERRCODE = 'OB004',
            HINT = 'make one with CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
END $outbox$;

CREATE TABLE @schema@.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE @schema@.meta IS 'metadata of the outbox: schema version, and its cluster';

-- ---- functions that a default or a policy is bound to ----

-- init replaces their bodies: internal/values.sql, internal/roles.sql.
CREATE FUNCTION @schema@._clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now()';
CREATE FUNCTION @schema@._acting_for(who name) RETURNS text LANGUAGE sql STABLE AS 'SELECT NULL::text';
CREATE FUNCTION @schema@._sees(who name) RETURNS text[] LANGUAGE sql STABLE AS 'SELECT ''{}''::text[]';
CREATE FUNCTION @schema@._inherits(who name, role text) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT false';

-- ---- limits of an event, checked on every path (docs/reference.md) ----

-- The limits are domains, whose checks are prepared once per connection; a CHECK on the table is prepared for every INSERT, and
-- costs more than the row itself. A function checks a field that is rarely given: a call is prepared faster than a condition.
-- Its names are qualified, because setting the search_path takes longer than everything else.
CREATE FUNCTION @schema@._headers_fit(headers json) RETURNS boolean -- not jsonb, which keeps only the last of duplicate names
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name is schema-qualified.
    IF pg_catalog.json_typeof(headers) OPERATOR(pg_catalog.<>) 'object'
       OR pg_catalog.octet_length(headers::pg_catalog.text) OPERATOR(pg_catalog.>) 65536 THEN
        RETURN false;
    END IF;
    RETURN (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<=) 64
                   AND pg_catalog.count(*) FILTER (WHERE pg_catalog.json_typeof(h.value) OPERATOR(pg_catalog.<>) 'string'
                       OR h.key OPERATOR(pg_catalog.!~) '^[^\u0001-\u001f\u007f-\u009f]+$') OPERATOR(pg_catalog.=) 0
            FROM pg_catalog.json_each(headers) AS h);
END $outbox$;
COMMENT ON FUNCTION @schema@._headers_fit(json) IS 'whether headers are an object of strings within the limits';

CREATE FUNCTION @schema@._payload_fits(payload json) RETURNS boolean LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE AS $outbox$
DECLARE -- Every name is schema-qualified.
    size pg_catalog.int8 := pg_catalog.octet_length(pg_catalog.json_send(payload));
    allowed pg_catalog.text;
BEGIN
    IF size OPERATOR(pg_catalog.<=) 1048576 THEN RETURN true; END IF;
    allowed := pg_catalog.current_setting('outbox.max_payload', true);
    IF allowed IS NULL OR allowed OPERATOR(pg_catalog.=) '' THEN RETURN false; END IF;
    RETURN size OPERATOR(pg_catalog.<=) LEAST(pg_catalog.pg_size_bytes(allowed), 67108864);
END $outbox$;
COMMENT ON FUNCTION @schema@._payload_fits(json) IS 'whether a payload is within 1 MiB, or outbox.max_payload, or 64 MiB';

CREATE FUNCTION @schema@._tenant_fits(tenant text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name is schema-qualified.
    RETURN pg_catalog.octet_length(tenant) OPERATOR(pg_catalog.<=) 1024
       AND tenant OPERATOR(pg_catalog.~) '^[^\u0001-\u001f\u007f-\u009f]+$';
END $outbox$;
COMMENT ON FUNCTION @schema@._tenant_fits(text) IS 'whether a text is a valid tenant';

CREATE FUNCTION @schema@._not_before_fits(not_before timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL SAFE AS $outbox$
BEGIN -- Every name is schema-qualified.
    RETURN not_before OPERATOR(pg_catalog.>=) pg_catalog.timestamptz 'epoch' AND not_before OPERATOR(pg_catalog.<=)
           (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) interval '87672 hours');
END $outbox$;
COMMENT ON FUNCTION @schema@._not_before_fits(timestamptz) IS 'whether an event can wait until then';

CREATE FUNCTION @schema@._keeps_id() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $outbox$
BEGIN -- Every name is schema-qualified.
    RETURN coalesce(pg_catalog.current_setting('outbox.keep_ids', true), '') OPERATOR(pg_catalog.=) 'on';
END $outbox$;
COMMENT ON FUNCTION @schema@._keeps_id() IS 'whether an id may be any UUID: that of an adopted row';

-- A producer whose event is rejected sees the constraint's name, so the name states the column and the limit. The constraints
-- are NOT VALID so that pg_dump writes them after the data: rows accepted earlier, under any outbox.max_payload, can be
-- restored. White space and control characters are listed: a character class would depend on the database's locale.
CREATE DOMAIN @schema@.event_id AS uuid;
ALTER DOMAIN @schema@.event_id ADD CONSTRAINT "id: a UUIDv7 (an adopted row keeps its UUID)"
    CHECK (get_byte(uuid_send(VALUE), 6) >> 4 = 7 AND get_byte(uuid_send(VALUE), 8) >> 6 = 2 OR @schema@._keeps_id()) NOT VALID;
CREATE DOMAIN @schema@.event_type AS text;
ALTER DOMAIN @schema@.event_type ADD CONSTRAINT "type: 1 to 255 bytes, no white space, no control character"
    CHECK (octet_length(VALUE) <= 255 AND
           VALUE ~ '^[^\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$') NOT VALID;
CREATE DOMAIN @schema@.event_aggregate_type AS text;
ALTER DOMAIN @schema@.event_aggregate_type
    ADD CONSTRAINT "aggregate_type: 1 to 1024 bytes, no '/', no control character"
    CHECK (octet_length(VALUE) <= 1024 AND VALUE ~ '^[^\u0001-\u001f\u007f-\u009f/]+$') NOT VALID;
CREATE DOMAIN @schema@.event_aggregate_id AS text;
ALTER DOMAIN @schema@.event_aggregate_id ADD CONSTRAINT "aggregate_id: 1 to 1024 bytes, no control character"
    CHECK (octet_length(VALUE) <= 1024 AND VALUE ~ '^[^\u0001-\u001f\u007f-\u009f]+$') NOT VALID;
CREATE DOMAIN @schema@.event_tenant AS text;
ALTER DOMAIN @schema@.event_tenant ADD CONSTRAINT "tenant: 1 to 1024 bytes, no control character"
    CHECK (@schema@._tenant_fits(VALUE)) NOT VALID;
-- A value stored in 4 KiB is at most 1 MiB even if compressed: LZ4 expands a byte to at most 255.
CREATE DOMAIN @schema@.event_payload AS json; -- not jsonb: it is returned byte for byte
ALTER DOMAIN @schema@.event_payload ADD CONSTRAINT "payload: at most 1 MiB, or outbox.max_payload, or 64 MiB"
    CHECK (pg_column_size(VALUE) <= 4096 OR @schema@._payload_fits(VALUE)) NOT VALID;
CREATE DOMAIN @schema@.event_headers AS json;
ALTER DOMAIN @schema@.event_headers ADD CONSTRAINT "headers: an object of at most 64 strings, at most 64 KiB"
    CHECK (@schema@._headers_fit(VALUE)) NOT VALID;
CREATE DOMAIN @schema@.event_not_before AS timestamptz;
ALTER DOMAIN @schema@.event_not_before ADD CONSTRAINT "not_before: from 1970 to ten years ahead"
    CHECK (@schema@._not_before_fits(VALUE)) NOT VALID;
-- Hours, because the length of a day depends on the time zone, and looking that up takes time.
CREATE DOMAIN @schema@.event_created_at AS timestamptz;
ALTER DOMAIN @schema@.event_created_at ADD CONSTRAINT "created_at: from 1970 to one day ahead"
    CHECK (VALUE BETWEEN 'epoch' AND clock_timestamp() + interval '24 hours') NOT VALID;

-- ---- events ----

-- Events are only ever inserted, and trimmed from the old end. Any language may produce with a plain
--     INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) VALUES (...)
-- xid is declared before seq, so that a transaction has its xid before it takes its first seq: the reader relies on that (see
-- internal/window.sql). id is a UUIDv7: the clock in parts of 1/4096 ms, of which a microsecond has four, so that ids grow
-- within a millisecond, too: 12 digits of milliseconds and 3 of their fraction, with the version between them (RFC 9562, 6.2,
-- method 3), in place of the first 15 of a random UUID. See internal/values.sql. A trigger takes the idempotency key, and leaves
-- the row out if it is known (internal/triggers.sql). It checks the key as well: a constraint would be prepared for every
-- INSERT.
CREATE TABLE @schema@.event (
    xid             xid8 NOT NULL DEFAULT pg_current_xact_id(), -- tells a reader by its snapshots which events it has seen
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version         bigint,                                     -- of the aggregate, if the producer counts it
    created_at      @schema@.event_created_at NOT NULL DEFAULT @schema@._clock(),
    not_before      @schema@.event_not_before,                  -- not delivered earlier; NULL: at once
    id              @schema@.event_id NOT NULL DEFAULT overlay(gen_random_uuid()::text, overlay(
                        lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0'), '7', 13, 0), 1, 18)::uuid,
    type            @schema@.event_type NOT NULL,
    aggregate_type  @schema@.event_aggregate_type,
    aggregate_id    @schema@.event_aggregate_id,                -- the key, with aggregate_type; NULL: none
    payload         @schema@.event_payload NOT NULL DEFAULT 'null',
    headers         @schema@.event_headers,
    tenant          @schema@.event_tenant DEFAULT nullif(current_setting('outbox.tenant', true), ''),
    idempotency_key text,                                       -- a known key stores no second event; NULL: none
    CONSTRAINT "aggregate_type and aggregate_id: both or neither" CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL))
);
CREATE INDEX event_xid ON @schema@.event (xid, seq);
COMMENT ON TABLE @schema@.event IS 'events: inserted once, never changed, trimmed when old and needed by no consumer';

-- Keys under which events were emitted, so that emitting one again stores no second event. Each tenant has its own keys.
CREATE TABLE @schema@.idempotency (
    tenant   text NOT NULL,                   -- the event's; '' for none
    key      text NOT NULL,
    event_id uuid NOT NULL,
    hash     bigint NOT NULL,                 -- of the event's content
    at       timestamptz NOT NULL DEFAULT @schema@._clock(),
    PRIMARY KEY (key, tenant)
);
CREATE INDEX idempotency_at ON @schema@.idempotency (at);
COMMENT ON TABLE @schema@.idempotency IS 'idempotency keys of emitted events';

-- ---- consumers and their progress ----

-- start_seen, start_floor: events that these show precede the start of the consumer. start_also: further such seqs
-- (_rebase_shown).
CREATE TABLE @schema@.consumer (
    name        text PRIMARY KEY,
    events      text NOT NULL,                 -- type patterns, '' for all
    type_like   text[],                        -- the same for LIKE; NULL for all
    predicate   text NOT NULL,                 -- on the payload, '' for none; evaluated by the worker
    ordering    text NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes       int NOT NULL CHECK (lanes BETWEEN 1 AND 64),
    retry       text NOT NULL,
    paused      boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT @schema@._clock(),
    report      text,                          -- the last report of its relay
    report_at   timestamptz,
    tenant      text NOT NULL DEFAULT coalesce(current_setting('outbox.tenant', true), ''), -- '' is the platform
    start_seen  pg_snapshot NOT NULL,
    start_floor bigint NOT NULL,
    start_also  bigint[],
    marks       boolean NOT NULL DEFAULT false -- rows of adopted tables are marked for it (see marking)
);
COMMENT ON TABLE @schema@.consumer IS 'consumers of the outbox';

-- All settings a consumer has had since the first change; the highest generation is in force. A worker may not restore replaced
-- settings: with an old configuration, it would skip events that the newer filter selects.
CREATE TABLE @schema@.setting (
    consumer   text NOT NULL,
    generation int NOT NULL,
    events     text NOT NULL,
    predicate  text NOT NULL,
    ordering   text NOT NULL,
    lanes      int NOT NULL,
    since      timestamptz NOT NULL,
    by_whom    text,                          -- NULL: not recorded
    PRIMARY KEY (consumer, generation)
);
COMMENT ON TABLE @schema@.setting IS 'the settings a consumer has had';

-- Former filters of a consumer, with the progress of the lanes when each was replaced: it applied to the events handed out by
-- then, none past head, and to claims up to epoch. n grows; the first filter that covers an event counts.
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
    also      bigint[],                       -- as consumer.start_also
    head      bigint NOT NULL,
    PRIMARY KEY (consumer, n, lane)
);
COMMENT ON TABLE @schema@.former_filter IS 'former filters of consumers, and how far each was applied';

-- The progress of a consumer. Events that `seen` shows are done with. If a window is open, the other events that `target` shows
-- are handed out in seq order, so far up to pos. No event of a transaction begun after `seen` has a seq up to `floor`; none
-- that `target` shows is past window_end. Lane -1 stands for the parked events. Each change is a new row with the next version,
-- found at the end of the index however many dead rows a long transaction keeps alive. No live claim has an epoch below
-- claims_from. Lanes at the same position share a row (internal/groups.sql). due_from only grows, so that index entries of
-- completed retries precede those of waiting ones.
CREATE TABLE @schema@.lane (
    consumer    text NOT NULL,
    lane        int NOT NULL,
    version     bigint NOT NULL,
    seen        pg_snapshot NOT NULL,
    floor       bigint NOT NULL,
    target      pg_snapshot,
    next_floor  bigint,
    window_end  bigint,
    pos         bigint NOT NULL,
    claims_from bigint NOT NULL,
    delivered   bigint NOT NULL,              -- events, since the consumer was created
    home        text,                         -- the recorded place, see _here; NULL: not determined yet
    due_from    timestamptz,                  -- of lane -1: no parked event of the consumer is due earlier; NULL: unknown
    leader      int,                          -- the lane whose position it shares; NULL: its own row has the position
    members     bigint,                       -- the lanes at this position, bit n for lane n; NULL: only this one
    kept_for    text,                         -- the worker that may claim them, until kept_until
    kept_until  timestamptz,
    PRIMARY KEY (consumer, lane, version)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @schema@.lane IS 'the progress of each lane of each consumer; the highest version counts';

-- The fence: every claim gets the next value in the upper bits; random lower bits tell a lost server's values.
CREATE SEQUENCE @schema@.epoch;

-- A lease: the events of the window with a seq in (from_seq, to_seq] that belong to the lane, or (lane -1) parked events. Those
-- carry its epoch, which is not indexed: so claiming them is a HOT update, as long as the page has room for the new row.
CREATE TABLE @schema@.claim (
    consumer     text NOT NULL,
    epoch        bigint NOT NULL,
    lane         int NOT NULL,
    seen         pg_snapshot,                 -- the window, as in lane
    floor        bigint NOT NULL,
    target       pg_snapshot,
    next_floor   bigint,
    window_end   bigint,
    from_seq     bigint NOT NULL,
    to_seq       bigint NOT NULL,
    owner        text NOT NULL,
    locked_until timestamptz NOT NULL,
    lease        interval NOT NULL,           -- locked_until is never further ahead, even after a clock change
    members      bigint,                      -- the lanes it covers, bit n for lane n; NULL: only its own
    seqs         bigint[],                    -- of lane -1: its events; of others: those parked until it ends; see parked.claim
    blamed       boolean NOT NULL DEFAULT false, -- it has one event, and if the worker vanishes, that counts as an attempt
    PRIMARY KEY (consumer, epoch)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @schema@.claim IS 'batches being delivered, each leased to one worker';

-- Events that wait: for a retry, for their time, or behind an event of their own key (due_at IS NULL). The first parked event
-- of each key has a due_at, whether it is claimed or not; so the index parked_due finds all due events and every held-up key.
-- Which failures count as an attempt: src/engine/failure.h.
CREATE TABLE @schema@.parked (
    consumer      text NOT NULL,
    seq           bigint NOT NULL,
    key           bigint NOT NULL,                -- the ordering key; 0: none
    attempts      int NOT NULL,
    due_at        timestamptz,
    wait          interval NOT NULL DEFAULT '0',  -- the requested wait: due_at is never further ahead
    crashes       int NOT NULL DEFAULT 0,         -- workers that vanished with it in flight since its last settlement
    delayed       boolean NOT NULL DEFAULT false, -- waits for its not_before
    claim         bigint,                         -- epoch of the claim that holds it
    error         text,
    failed_at     timestamptz,
    failing_since timestamptz,                    -- it has failed ever since
    proven        boolean NOT NULL DEFAULT false, -- the failure is known to be the event's own
    PRIMARY KEY (consumer, seq)
) WITH (fillfactor = 45);
CREATE INDEX parked_due ON @schema@.parked (consumer, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX parked_key ON @schema@.parked (consumer, key, seq);
COMMENT ON TABLE @schema@.parked IS 'events that wait for a retry, for their time, or behind another event of the same key';

-- Dead letters: a full copy of the event, unaffected by trimming. A trigger records those deleted (internal/triggers.sql).
CREATE TABLE @schema@.dead (
    consumer        text NOT NULL,
    seq             bigint NOT NULL,
    version         bigint,
    created_at      timestamptz NOT NULL,
    not_before      timestamptz,
    id              uuid NOT NULL,
    type            text NOT NULL,
    aggregate_type  text,
    aggregate_id    text,
    payload         json NOT NULL,
    headers         json,
    tenant          text,
    attempts        int NOT NULL,
    error           text,
    dead_at         timestamptz NOT NULL,
    retrying        boolean NOT NULL DEFAULT false, -- it was sent back, and is parked
    idempotency_key text,
    PRIMARY KEY (consumer, seq)
);
COMMENT ON TABLE @schema@.dead IS 'dead letters, per consumer';

-- How individual events ended for a consumer, if positions and filters do not determine it. A row is deleted with its event.
CREATE TABLE @schema@.ended (
    seq      bigint NOT NULL,
    consumer text NOT NULL,
    state    text NOT NULL CHECK (state IN ('dropped', 'skipped', 'delivered')),
    PRIMARY KEY (seq, consumer)
);
COMMENT ON TABLE @schema@.ended IS 'how individual events ended, where positions and filters do not determine it';

-- Samples of when a consumer ('': all) was done with every event up to seq that `seen` shows, and with all before it. trim
-- takes one now and then (functions/trim.sql), and deletes those no longer needed, so there are about 170 for a consumer. A
-- lost sample keeps events longer, and never deletes one too early.
CREATE TABLE @schema@.passed (
    consumer text NOT NULL,
    seq      bigint NOT NULL,
    seen     pg_snapshot NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (consumer, seq, at)
);
COMMENT ON TABLE @schema@.passed IS 'samples of when each consumer was done with which events, used by retention';

-- Optional record of deliveries, with the sink's own id.
CREATE TABLE @schema@.receipt (
    consumer text NOT NULL,
    seq      bigint NOT NULL,
    event_id uuid NOT NULL,
    sink_id  text,
    at       timestamptz NOT NULL,
    PRIMARY KEY (consumer, seq)
);
CREATE INDEX receipt_at ON @schema@.receipt (at);
COMMENT ON TABLE @schema@.receipt IS 'optional record of deliveries';

-- High-water marks: the last id in each stream that a consumer has written to; Redis writes it hi-lo. Read it in the same
-- snapshot as your rows (see hwm): then the rows contain everything in the stream up to it.
CREATE TABLE @schema@.mark (
    stream   text NOT NULL,
    consumer text NOT NULL,
    hi       bigint NOT NULL,
    lo       bigint NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (stream, consumer)
) WITH (fillfactor = 50);
COMMENT ON TABLE @schema@.mark IS 'how far each consumer has written each stream';

-- The inbox: the keys that each handler has handled. Its key is the event's idempotency key if it has one, else its id.
CREATE TABLE @schema@.handled (
    handler text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    hash    bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT @schema@._clock(),
    tenant  text NOT NULL DEFAULT '',
    PRIMARY KEY (handler, key, tenant)
);
CREATE INDEX handled_at ON @schema@.handled (at);
COMMENT ON TABLE @schema@.handled IS 'the inbox: the keys that each handler has handled';

-- ---- adopted tables whose rows are marked (C4.9) ----

-- A table of the application whose rows are marked as processed, by setting column col, once `consumer` has received them. keys
-- identify a row. Rows and triggers refer to the table by id, since its name may change, and its oid changes in a restore.
-- error: why rows could not be marked at the last attempt, since error_at.
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

-- Which row of such a table became which event, until the row is marked: few more rows than events that wait for delivery.
CREATE TABLE @schema@.adopted_row (
    marking int NOT NULL,
    seq     bigint NOT NULL,
    key     text[] NOT NULL,                  -- its keys, as text
    PRIMARY KEY (marking, seq)
);
COMMENT ON TABLE @schema@.adopted_row IS 'which row of an adopted table became which event, until it is marked';

-- ---- roles and tenants: only the owner writes to the tables; workers and operators call functions that check them ----

-- Which consumers a role may work on: a name, also for its handlers (name.handler), or a prefix and *. Whether a role has the
-- part is determined by its rights, so a role created again under an old name has none. See internal/roles.sql.
CREATE TABLE @schema@.worker (
    role     text NOT NULL,
    consumer text NOT NULL,
    PRIMARY KEY (role, consumer)
);
COMMENT ON TABLE @schema@.worker IS 'which consumers a role may work on';

-- Roles that act for one tenant, regardless of the settings of their connections.
CREATE TABLE @schema@.held (
    role   text PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> '')
);
COMMENT ON TABLE @schema@.held IS 'roles that are held to a tenant';

-- A connection that says which tenant it works for (SET outbox.tenant) sees only that tenant's events and consumers; another
-- one is the platform's. Row-level security does not apply to the owner and to superusers. The tenant is determined once per
-- statement.
CREATE POLICY tenant ON @schema@.event FOR SELECT USING ((SELECT @schema@._acting_for(current_user)) IN ('', tenant));
CREATE POLICY tenant ON @schema@.idempotency FOR SELECT USING ((SELECT @schema@._acting_for(current_user)) IN ('', tenant));
CREATE POLICY given ON @schema@.idempotency FOR UPDATE USING ((SELECT @schema@._acting_for(current_user)) = tenant);
CREATE POLICY tenant ON @schema@.handled USING ((SELECT @schema@._acting_for(current_user)) IN ('', tenant));
-- An emit queries no table: it recognizes a role that is limited to a tenant by its lack of the right to choose ids.
CREATE POLICY emit ON @schema@.event FOR INSERT WITH CHECK (
    CASE WHEN has_column_privilege('@schema@.event'::regclass, 'id', 'INSERT')
         THEN coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant)
         ELSE @schema@._acting_for(current_user) = tenant END);
CREATE POLICY emit ON @schema@.idempotency FOR INSERT WITH CHECK (
    CASE WHEN has_column_privilege('@schema@.event'::regclass, 'id', 'INSERT')
         THEN coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant)
         ELSE @schema@._acting_for(current_user) = tenant END);

-- A consumer is visible to its tenant, and to workers that may work on it, and with it all records about it. Dead letters of
-- the platform's consumers are visible to it alone: a tenant could mark them as sent back without sending them.
CREATE POLICY tenant ON @schema@.consumer USING ((SELECT @schema@._acting_for(current_user)) IN ('', tenant)
    AND ((SELECT @schema@._sees(current_user)) IS NULL OR name LIKE ANY ((SELECT @schema@._sees(current_user))::text[])));
DO $outbox$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY '{setting, former_filter, lane, claim, parked, dead, ended, receipt, mark, marking}'::text[] LOOP
        EXECUTE format('CREATE POLICY tenant ON %s.%I USING (consumer IN (SELECT c.name FROM %1$s.consumer c))', '@schema@', t);
    END LOOP;
    FOREACH t IN ARRAY '{event, idempotency, handled, consumer, passed, adopted_row, worker, held, setting, former_filter, lane,
                         claim, parked, dead, ended, receipt, mark, marking}'::text[] LOOP
        EXECUTE format('ALTER TABLE %s.%I ENABLE ROW LEVEL SECURITY', '@schema@', t);
    END LOOP;
END $outbox$;
CREATE POLICY tenant ON @schema@.passed USING (
    consumer IN (SELECT c.name FROM @schema@.consumer c)
    OR consumer = '' AND (SELECT @schema@._acting_for(current_user)) = ''); -- '': for those who see all consumers
CREATE POLICY tenant ON @schema@.adopted_row USING (marking IN (SELECT m.id FROM @schema@.marking m));

-- A grant is visible to its role, and to operators, which may be limited to a tenant themselves.
CREATE POLICY own ON @schema@.worker USING (@schema@._inherits(current_user, role)
    OR ((SELECT @schema@._sees(current_user)) IS NULL AND (SELECT @schema@._acting_for(current_user)) = ''));
CREATE POLICY tenant ON @schema@.held USING ((SELECT @schema@._acting_for(current_user)) IN ('', tenant));

-- ---- request and answer of a turn, see internal/turn.sql ----

-- A worker's request: which claim it settles, and what it claims next.
CREATE TYPE @schema@._request AS (
    place        int,      -- its number in the call
    consumer     text,
    owner        text,
    -- How a claim ended. For outcomes and release_from see settle, for marks internal/settle.sql.
    epoch        bigint,   -- the claim; 0: nothing to settle
    tried        bigint,   -- how many of its events were not given back
    outcomes     jsonb,
    release_from bigint,
    marks        jsonb,
    -- The next claim.
    max_events   int,      -- 0: claim nothing
    lease_ms     bigint,
    max_attempts int,      -- an event that was in flight this often when its worker vanished is buried;
                           -- 0: take over nothing
    suspect_policy int,    -- see internal/claim_parked.sql
    parked_first boolean,  -- try parked events before new ones
    clock_repair boolean,  -- if no parked event is due, repair their times, see _clock_repair
    lane_hint    int,      -- the lane to try first
    known        bigint[], -- epochs of the claims that the worker holds
    ordering     text,     -- the settings it works with; NULL: not given
    lanes        int,
    events       text,
    predicate    text,
    -- Events that the worker has read ahead, and wants to claim.
    ahead_lane    int,     -- -1: none
    ahead_target  text,    -- the window they were read in
    ahead_from    bigint,  -- they are in (ahead_from, ahead_to]
    ahead_to      bigint,
    ahead_n       int,
    ahead_members bigint,  -- the lanes whose events they are, see lane.members
    key_sample    bigint   -- the worker's hash of a sample key, see _knows_keys; NULL: none
);

CREATE TYPE @schema@._answer AS (
    place       int,       -- of the request
    lost        boolean,   -- the worker no longer has the claim to be settled
    paused      boolean,
    changed     boolean,   -- the consumer has other settings now: nothing was claimed
    busy        boolean,   -- another worker has a lane
    through     boolean,   -- nothing is left to do
    skipped     boolean,   -- it advanced without finding events: ask again at once
    suspect_due boolean,   -- a suspect event is due, but suspect_policy left it
    crashed     bigint,    -- events taken over from workers that vanished
    buried      bigint,    -- how many of those became dead letters
    wait_ms     bigint,    -- ask again after this time at the latest; -1: nothing is due
    now_ms      bigint,    -- the database's clock
    epoch       bigint,    -- the claim, if n > 0:
    lane        int,       -- -1: parked events
    n           int,
    suspect     boolean,
    held        bigint[],  -- its events that have to wait behind others of their key
    keys        bigint[],  -- instead of held: all events of these keys have to wait
    seen        text,      -- its window
    floor       bigint,
    target      text,
    from_seq    bigint,    -- the claim is in (from_seq, to_seq]
    to_seq      bigint,
    window_end  bigint,
    quiet       boolean,   -- the claim took every event there was, and nothing is parked
    members     bigint,    -- the lanes that it covers
    wanted      bigint[]   -- the seqs of its events; NULL: not given
);

INSERT INTO @schema@.meta (name, value) VALUES ('schema_version', '1');
DO $outbox$
BEGIN
    INSERT INTO @schema@.meta (name, value) SELECT 'system_identifier', system_identifier FROM pg_catalog.pg_control_system();
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- then only transaction numbers show that it was moved
END $outbox$;
