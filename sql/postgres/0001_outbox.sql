-- The outbox in a PostgreSQL database, version 1: the tables. It may share the database with the application's own.
--
-- @schema@ stands for the schema, quoted as an identifier; right after a single quote it is quoted for a literal as well.
-- To change anything here: add a file 0002_*.sql that alters what this one made, list it in meson.build beside it,
-- and never edit a migration that was released. Functions and views are no migrations: they are in files of their own,
-- and are put in place anew whenever the schema is brought up to date.

CREATE TABLE @schema@.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE @schema@.meta IS 'what the outbox knows of itself: schema version, and the cluster it lives in';

-- What time it is: the one clock that everything here goes by, the database''s. For a procedure that commits the statement is
-- the whole CALL, and goes on for as long as that: there each transaction's beginning is the later one.
CREATE FUNCTION @schema@.clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT greatest(statement_timestamp(), transaction_timestamp())';
COMMENT ON FUNCTION @schema@.clock() IS 'the clock leases and retries go by';

-- Domains, because what they check is prepared once per connection; a CHECK on the table is prepared for every INSERT, and
-- costs more than the row itself.
-- One condition in each: what takes time is not to check, but to get ready for it.
CREATE DOMAIN @schema@.event_type AS varchar(255) CHECK (VALUE ~ '^[^[:space:][:cntrl:]]+$');
CREATE DOMAIN @schema@.event_headers AS json CHECK (json_typeof(VALUE) = 'object');

-- Events are only ever inserted, and trimmed from the old end. Any language may produce with a plain
--     INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) VALUES (...)
-- xid is the transaction's own, so that a reader can tell by snapshots what it has seen. It stands before seq, so that a
-- transaction has it before it takes its first seq: the reader relies on that (see functions/window_events.sql).
-- payload is json, not jsonb: it comes out byte for byte.
CREATE TABLE @schema@.event (
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version        bigint,
    created_at     timestamptz NOT NULL DEFAULT @schema@.clock(),
    not_before     timestamptz,
    id             uuid NOT NULL DEFAULT (encode(
                       int8send((date_part('epoch', clock_timestamp()) * 1000)::bigint << 16 | 28672 | (random() * 4095)::int)
                       || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid),
    type           @schema@.event_type NOT NULL,
    aggregate_type text,
    aggregate_id   text,                     -- the key, with aggregate_type; NULL: none
    payload        json NOT NULL DEFAULT 'null',
    headers        @schema@.event_headers,
    tenant         text DEFAULT nullif(current_setting('outbox.tenant', true), '')
);
CREATE INDEX event_xid ON @schema@.event (xid, seq);
COMMENT ON TABLE @schema@.event IS 'events: inserted once, never changed, trimmed when old and needed by nobody';

-- Keys under which events were emitted, so that emitting again gives no second event. Each tenant has its own keys.
CREATE TABLE @schema@.idempotency (
    tenant   text NOT NULL,                   -- the event's; '' for none
    key      text NOT NULL,
    event_id uuid NOT NULL,
    hash     bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT @schema@.clock(),
    PRIMARY KEY (key, tenant)
);
CREATE INDEX idempotency_at ON @schema@.idempotency (at);
COMMENT ON TABLE @schema@.idempotency IS 'idempotency keys of emitted events';

CREATE TABLE @schema@.consumer (
    name       text PRIMARY KEY,
    events     text NOT NULL,                 -- type patterns, '' for all
    type_like  text[],                        -- the same for LIKE; NULL for all
    predicate  text NOT NULL,                 -- on the payload, '' for none; looked at by the worker
    ordering   text NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes      int NOT NULL CHECK (lanes BETWEEN 1 AND 64),
    retry      text NOT NULL,
    paused     boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT @schema@.clock(),
    report     text,                          -- what its relay last had to say
    report_at  timestamptz,
    tenant     text NOT NULL DEFAULT coalesce(current_setting('outbox.tenant', true), '') -- whose; '': the platform's
);
COMMENT ON TABLE @schema@.consumer IS 'who reads the outbox';

-- How far a consumer has got. What `seen` shows is done with. If a window is open, what `target` shows besides goes out
-- in seq order, and up to pos it has. No event of a transaction begun after `seen` has a seq up to `floor`; none that
-- `target` shows is past window_end. Lane -1 stands for the parked events.
-- Each change is a new row with the next version, and the old one is deleted: the newest is found at the end of the index
-- however many dead rows a long transaction keeps alive. No live claim of the consumer has an epoch below claims_from.
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
    PRIMARY KEY (consumer, lane, version)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @schema@.lane IS 'how far each lane of each consumer has got; the highest version counts';

-- The fence: every claim gets the next one, in the upper bits; random lower ones tell apart what a lost server gave out.
CREATE SEQUENCE @schema@.epoch;

-- A lease: the events of the window with a seq in (from_seq, to_seq] that belong to the lane, or (lane -1) the parked
-- events that carry this epoch.
CREATE TABLE @schema@.claim (
    consumer     text NOT NULL,
    epoch        bigint NOT NULL,
    lane         int NOT NULL,
    seen         pg_snapshot,
    floor        bigint NOT NULL,
    target       pg_snapshot,
    next_floor   bigint,
    window_end   bigint,
    from_seq     bigint NOT NULL,
    to_seq       bigint NOT NULL,
    owner        text NOT NULL,
    locked_until timestamptz NOT NULL,
    lease        interval NOT NULL,           -- locked_until is never further ahead, whatever the clock did
    PRIMARY KEY (consumer, epoch)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @schema@.claim IS 'batches being delivered, each leased to one worker';

-- Events that wait: for a retry, for their time, or behind an event of their own key (due_at IS NULL).
CREATE TABLE @schema@.parked (
    consumer  text NOT NULL,
    seq       bigint NOT NULL,
    key       bigint NOT NULL,                -- what order goes by; 0: nothing
    attempts  int NOT NULL,
    due_at    timestamptz,
    wait      interval NOT NULL DEFAULT '0',  -- what it was told to wait: due_at is never further ahead
    careful   boolean NOT NULL DEFAULT false, -- was in flight when a worker vanished: alone, attempt counted first
    delayed   boolean NOT NULL DEFAULT false, -- waits for its not_before
    claim     bigint,                         -- epoch of the claim that holds it
    error     text,
    failed_at timestamptz,
    PRIMARY KEY (consumer, seq)
);
CREATE INDEX parked_due ON @schema@.parked (consumer, due_at, seq) WHERE claim IS NULL AND due_at IS NOT NULL;
CREATE INDEX parked_key ON @schema@.parked (consumer, key, seq);
CREATE INDEX parked_claim ON @schema@.parked (consumer, claim) WHERE claim IS NOT NULL;
COMMENT ON TABLE @schema@.parked IS 'events that failed and wait, or wait behind one that did';

-- Dead letters: the whole event, so that trimming takes nothing away from it.
CREATE TABLE @schema@.dead (
    consumer       text NOT NULL,
    seq            bigint NOT NULL,
    version        bigint,
    created_at     timestamptz NOT NULL,
    not_before     timestamptz,
    id             uuid NOT NULL,
    type           text NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    payload        json NOT NULL,
    headers        json,
    tenant         text,
    attempts       int NOT NULL,
    error          text,
    dead_at        timestamptz NOT NULL,
    retrying       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (consumer, seq)
);
COMMENT ON TABLE @schema@.dead IS 'dead letters, per consumer';

-- The inbox: what a handler has taken effect for.
CREATE TABLE @schema@.handled (
    handler text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    hash    bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT @schema@.clock(),
    PRIMARY KEY (handler, key)
);
CREATE INDEX handled_at ON @schema@.handled (at);
COMMENT ON TABLE @schema@.handled IS 'the inbox: what each handler has taken effect for';

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
-- snapshot as your rows (see hwm), and those hold everything that is in the stream up to it.
CREATE TABLE @schema@.mark (
    stream   text NOT NULL,
    consumer text NOT NULL,
    hi       bigint NOT NULL,
    lo       bigint NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (stream, consumer)
) WITH (fillfactor = 50);
COMMENT ON TABLE @schema@.mark IS 'how far each consumer has written each stream';

-- Tenants: a connection that says which tenant it works for (SET outbox.tenant) has to do with that tenant's events
-- alone, and with that tenant's consumers; one that says nothing is the platform's, which has to do with all. Not so for
-- a role above row-level security: the owner of the tables, a superuser.
ALTER TABLE @schema@.event ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.idempotency ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.consumer ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.event
    USING (coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant));
CREATE POLICY tenant ON @schema@.idempotency
    USING (coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant));
CREATE POLICY tenant ON @schema@.consumer
    USING (coalesce(current_setting('outbox.tenant', true), '') IN ('', tenant));

-- What there is about a consumer is its tenant's, too: of one that cannot be seen, nothing can. That goes for dead letters as
-- well: the platform's consumers have theirs to themselves, or a tenant could mark them as sent back, and send nothing.
ALTER TABLE @schema@.lane ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.claim ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.parked ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.dead ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.receipt ENABLE ROW LEVEL SECURITY;
ALTER TABLE @schema@.mark ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON @schema@.lane USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.claim USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.parked USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.dead USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.receipt USING (consumer IN (SELECT c.name FROM @schema@.consumer c));
CREATE POLICY tenant ON @schema@.mark USING (consumer IN (SELECT c.name FROM @schema@.consumer c));

-- Dead letters are an operator's to send back and to drop, which is who may delete events. A consumer's own part is to
-- bury, and to delete those that were sent back and delivered.
CREATE POLICY redrive ON @schema@.dead AS RESTRICTIVE FOR UPDATE USING (true)
    WITH CHECK (NOT retrying OR has_table_privilege('@schema@.event'::regclass, 'DELETE'));
CREATE POLICY remove ON @schema@.dead AS RESTRICTIVE FOR DELETE
    USING (retrying OR has_table_privilege('@schema@.event'::regclass, 'DELETE'));

INSERT INTO @schema@.meta (name, value) VALUES ('schema_version', '1');
DO $outbox$
BEGIN
    INSERT INTO @schema@.meta (name, value) SELECT 'system_identifier', system_identifier FROM pg_catalog.pg_control_system();
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- then only transaction numbers tell that it was moved
END
$outbox$;
