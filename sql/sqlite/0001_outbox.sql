-- The outbox in a SQLite database. It may share the file with the application's own tables. Times
-- are milliseconds since 1970.
--
-- To change the schema before the first release, edit this file. After it, never edit a released
-- migration: add a file 0002_*.sql that alters the tables and ends with UPDATE outbox_meta SET
-- value = '2' WHERE name = 'schema_version', list it in meson.build beside this one, and raise
-- SQLITE_SCHEMA_VERSION.

CREATE TABLE outbox_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- ---- events ----

-- Events are inserted once, and trimmed from the old end. seq is commit order, because SQLite has
-- one writer at a time; AUTOINCREMENT prevents a number from being used again. Programs in any
-- language may emit with a plain
--    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES (...)
--
-- The id is a UUIDv7: the time, then 24 bits of the number of changes on this connection, which
-- grows with every event, so that ids grow within a millisecond, then 50 random bits;
-- src/base/uuid7.c does the same. The time is rounded as the program rounds it, because a Julian
-- day is not a whole number of milliseconds. Only an adopted row keeps an id of another kind, which
-- headers name as source_id.
--
-- If the idempotency key exists, a plain INSERT fails ("UNIQUE constraint failed:
-- outbox_event.idempotency_key"); INSERT OR IGNORE stores nothing, changes 0 rows, and RETURNING
-- returns no row. A key is kept as long as its event: at least for retention after its delivery.
--
-- The limits are those of docs/reference.md. A refused producer sees the constraint's name, so the
-- name states the column and the limit. SQLite keeps any type in any column, text with NUL inside
-- (where length() and GLOB end), and bytes that are not UTF-8. No CHECK can find those bytes; a
-- relay turns such events into dead letters. SQLite compiles the checks with every INSERT that is
-- prepared, which takes longer than running them and depends on the number of terms. So there are
-- few checks, and each covers much:
-- * x BETWEEN ' ' AND printf('%.99s', x): text of 1 to 99 bytes without NUL. printf makes text of
--   bytes, ends at NUL, and cuts off the rest, so that a longer x is beyond it; all characters
--   before ' ' are control characters.
-- * x NOT GLOB CAST(x'...' AS TEXT): '*[...]*' with the control characters, and '/', or white space.
--   Types are mostly ASCII, where a simpler pattern finds white space sooner.
-- * Replacing ':"' by ',"', '{' by '[' and '}' by ']' makes a JSON array of an object whose values
--   are strings; any other object becomes invalid JSON.
-- * Replacing ',"' by '},{"' turns it into as many objects as it has strings.
CREATE TABLE outbox_event (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
                        (julianday() - 2440587.5) * 86400000 + 0.5 >> 16, (julianday() - 2440587.5) * 86400000 + 0.5 & 65535,
                        total_changes() >> 12 & 4095, ((total_changes() & 4095 | 8192) << 2) + (random() & 3),
                        random() & 281474976710655)),
    type            TEXT NOT NULL,
    aggregate_type  TEXT,
    aggregate_id    TEXT,                     -- the key, with aggregate_type; NULL: none
    version         INTEGER,                  -- of the aggregate, if the producer counts it
    payload         TEXT NOT NULL DEFAULT 'null',
    headers         TEXT,
    tenant          TEXT,
    not_before      INTEGER,                  -- not delivered earlier; NULL: at once
    created_at      INTEGER NOT NULL DEFAULT (CAST((julianday() - 2440587.5) * 86400000 AS INTEGER)),
    idempotency_key TEXT,
    CONSTRAINT "seq: positive" CHECK (seq > 0), -- an event with seq <= 0 would never be delivered
    CONSTRAINT "id: a UUIDv7 in 36 characters (an adopted row keeps its UUID)" CHECK (id = printf('%.36s', id) AND id GLOB
        '[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]-[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]'
        AND (id GLOB '??????????????7????[89abAB]*' OR json_extract(headers, '$.source_id') IS id)),
    CONSTRAINT "type: 1 to 255 bytes, no white space, no control character" CHECK (
        type BETWEEN '!' AND printf('%.255s', type) AND (type NOT GLOB '*[^!-~]*' OR type NOT GLOB
        CAST(x'2a5b012d207f2dc2a0e19a80e280802de2808ae280a8e280a9e280afe2819fe380805d2a' AS TEXT))),
    CONSTRAINT "aggregate_type: 1 to 1024 bytes, no '/', no control character" CHECK (
        aggregate_type BETWEEN ' ' AND printf('%.1024s', aggregate_type) AND aggregate_type NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f2f5d2a' AS TEXT)),
    CONSTRAINT "aggregate_id: 1 to 1024 bytes, no control character" CHECK (
        aggregate_id BETWEEN ' ' AND printf('%.1024s', aggregate_id) AND aggregate_id NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT)),
    CONSTRAINT "aggregate_type and aggregate_id: both or neither" CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CONSTRAINT "version: a whole number of 64 bits" CHECK (version = CAST(version AS INTEGER)),
    CONSTRAINT "payload: JSON without NUL, at most 64 MiB" CHECK (payload = printf('%.67108864s', payload) AND json_valid(payload)),
    CONSTRAINT "headers: an object of at most 64 strings, at most 64 KiB" CHECK (headers IS NULL OR
        headers = printf('%.65536s', headers) AND
        json_valid(rtrim(replace(replace(json(headers), ':"', ',"'), '{', '['), '}') || ']') AND
        json_array_length(replace(json_array(json(headers)), ',"', '},{"')) <= 64),
    CONSTRAINT "tenant: 1 to 1024 bytes, no control character" CHECK (tenant IS NULL OR
        tenant BETWEEN ' ' AND printf('%.1024s', tenant) AND tenant NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT)),
    CONSTRAINT "not_before: milliseconds, from 1970 to ten years ahead" CHECK (
        not_before BETWEEN 0 AND CAST(not_before AS INTEGER) AND not_before <= created_at + 315619200000),
    CONSTRAINT "created_at: milliseconds, from 1970 to 9999" CHECK (
        created_at BETWEEN 0 AND CAST(created_at AS INTEGER) AND created_at <= 253402300799999),
    CONSTRAINT "idempotency_key: 1 to 1024 bytes, no control character" CHECK (idempotency_key IS NULL OR
        idempotency_key BETWEEN ' ' AND printf('%.1024s', idempotency_key) AND idempotency_key NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT))
);
CREATE UNIQUE INDEX outbox_event_idempotency ON outbox_event (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Events stay as they were inserted: a statement that would change, delete or replace one is
-- refused as a whole. Code that deletes or renumbers events (trim, src/store/sqlite/turn.c) inserts
-- the row 'change_events' into outbox_meta and deletes it in the same transaction, so no other
-- session ever sees it. An owner who has to erase an event does the same (docs/operations.md).
CREATE TRIGGER outbox_event_deleted BEFORE DELETE ON outbox_event
WHEN NOT EXISTS (SELECT 1 FROM outbox_meta WHERE name = 'change_events')
BEGIN
    SELECT RAISE(ABORT, 'outbox_event: events are insert-only, and this one was not deleted: `outbox trim` deletes old events; to revoke something, emit another event');
END;
CREATE TRIGGER outbox_event_updated BEFORE UPDATE ON outbox_event
WHEN NOT EXISTS (SELECT 1 FROM outbox_meta WHERE name = 'change_events')
BEGIN
    SELECT RAISE(ABORT, 'outbox_event: events are insert-only, and this one was not changed: to insert once, give an idempotency_key and use INSERT OR IGNORE; to correct something, emit another event');
END;

-- INSERT OR REPLACE deletes the existing event without running a DELETE trigger (except with PRAGMA
-- recursive_triggers). Inside a trigger the conflict policy of the statement that fired it applies,
-- if it has one: so with OR REPLACE, and only then, the row 'replaced' is replaced. A plain INSERT,
-- and one with OR IGNORE or ON CONFLICT, run as without the trigger.
CREATE TRIGGER outbox_event_inserted BEFORE INSERT ON outbox_event
WHEN EXISTS (SELECT 1 FROM outbox_event WHERE id = NEW.id)
  OR NEW.seq > 0 AND EXISTS (SELECT 1 FROM outbox_event WHERE seq = NEW.seq) -- -1: not assigned yet
  OR NEW.idempotency_key IS NOT NULL AND EXISTS (SELECT 1 FROM outbox_event WHERE idempotency_key = NEW.idempotency_key)
BEGIN
    INSERT OR IGNORE INTO outbox_meta (name, value) VALUES ('replaced', 'yes');
    SELECT RAISE(ABORT, 'outbox_event: events are insert-only, and none was replaced: to insert once, give an idempotency_key and use INSERT OR IGNORE')
    FROM outbox_meta WHERE name = 'replaced' AND value = 'yes';
END;

-- Keys under which events were emitted, so that emitting again creates no second event.
CREATE TABLE outbox_idempotency (
    key      TEXT PRIMARY KEY,
    event_id TEXT NOT NULL,
    hash     INTEGER NOT NULL,     -- of the content
    at       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX outbox_idempotency_at ON outbox_idempotency (at);

-- ---- consumers and their positions ----

-- parked_stamp changes whenever events of the consumer are parked or unparked. A worker need not
-- read the keys of parked events again while it stays the same.
CREATE TABLE outbox_consumer (
    name         TEXT PRIMARY KEY,
    events       TEXT NOT NULL,                 -- type patterns, '' for all
    predicate    TEXT NOT NULL,                 -- on the payload, '' for none
    ordering     TEXT NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes        INTEGER NOT NULL,
    retry        TEXT NOT NULL,
    paused       INTEGER NOT NULL DEFAULT 0,
    epoch        INTEGER NOT NULL DEFAULT 0,    -- grows with every claim: the fence
    delivered    INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    report       TEXT,                          -- the last report from its relay
    report_at    INTEGER,
    start        INTEGER NOT NULL,              -- events up to here came before its start
    parked_stamp INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- All settings that a consumer has had since the first change; the highest generation is in force.
-- A worker may not restore replaced settings: restarted with an old configuration, it would skip
-- events that the newer filter selects. A consumer whose settings never changed has no row.
CREATE TABLE outbox_setting (
    consumer   TEXT NOT NULL,
    generation INTEGER NOT NULL,
    events     TEXT NOT NULL,
    predicate  TEXT NOT NULL,
    ordering   TEXT NOT NULL,
    lanes      INTEGER NOT NULL,
    since      INTEGER NOT NULL,   -- ms
    by_whom    TEXT,               -- NULL: not recorded
    PRIMARY KEY (consumer, generation)
) WITHOUT ROWID;

-- Former filters of a consumer, each with the position of every lane when it was replaced: the
-- filter applied to the events handed out before. n grows; the first row that covers an event
-- decides. low and high: the least and the greatest of the positions. epoch: claims up to it were
-- made under this filter.
CREATE TABLE outbox_former_filter (
    consumer  TEXT NOT NULL,
    n         INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    lanes     INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    low       INTEGER NOT NULL,
    high      INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    events    TEXT NOT NULL,
    predicate TEXT NOT NULL,
    PRIMARY KEY (consumer, n, lane)
) WITHOUT ROWID;

-- Every event up to position was handed out: it is in a claim, parked, dead, or delivered. high and
-- high_id reveal event numbers that restarted.
CREATE TABLE outbox_lane (
    consumer TEXT NOT NULL,
    lane     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    high     INTEGER NOT NULL DEFAULT 0,        -- the highest number it was handed; for claims of all lanes, one lane has it
    high_id  TEXT,                              -- the id of that event
    PRIMARY KEY (consumer, lane)
) WITHOUT ROWID;

-- A lease: the events of (from_seq, to_seq] in that lane, or parked events (seqs), which have this
-- epoch. Lane -1: of all lanes, for a worker that holds all of them. A claim without events
-- (from_seq = to_seq) reserves a lane for a worker that found all of them taken.
CREATE TABLE outbox_claim (
    consumer     TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    parked       INTEGER NOT NULL,              -- 1: parked events
    from_seq     INTEGER NOT NULL,
    to_seq       INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    locked_until INTEGER NOT NULL,
    lease        INTEGER NOT NULL,              -- in ms: locked_until is never further ahead, even if the clock was wrong
    boot         INTEGER,                       -- when the owner's machine was started; NULL: not known
    ahead        INTEGER NOT NULL DEFAULT 0,    -- ms by which the owner's wall clock was ahead of the time since then
    seqs         TEXT,                          -- numbers of its parked events, as a JSON array
    blamed       INTEGER NOT NULL DEFAULT 0,    -- if the worker vanishes, its only event is charged an attempt
    PRIMARY KEY (consumer, epoch)
) WITHOUT ROWID;

-- Events that wait: for a retry, for their time, or behind an event of their own key (due_at IS
-- NULL). A failure uses up an attempt only once the event is known to be at fault, because other
-- events were delivered at the same time: see src/engine/suspect.h.
CREATE TABLE outbox_parked (
    consumer      TEXT NOT NULL,
    seq           INTEGER NOT NULL,
    key           INTEGER NOT NULL,             -- of the order; 0: the event is not ordered
    attempts      INTEGER NOT NULL,
    due_at        INTEGER,
    wait          INTEGER NOT NULL DEFAULT 0,   -- the requested wait: due_at is never further ahead
    crashes       INTEGER NOT NULL DEFAULT 0,   -- workers that vanished while delivering it, since its last answer
    delayed       INTEGER NOT NULL DEFAULT 0,   -- waits for its not_before
    claim         INTEGER,                      -- epoch of the claim that holds it
    error         TEXT,
    failed_at     INTEGER,
    failing_since INTEGER,                      -- every attempt since then has failed
    proven        INTEGER NOT NULL DEFAULT 0,   -- the event is known to be at fault
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE INDEX outbox_parked_due ON outbox_parked (consumer, due_at, seq) WHERE claim IS NULL AND due_at IS NOT NULL;
CREATE INDEX outbox_parked_key ON outbox_parked (consumer, key, seq);

-- Dead letters: a full copy of the event, so that trimming does not affect them.
CREATE TABLE outbox_dead (
    consumer        TEXT NOT NULL,
    seq             INTEGER NOT NULL,
    id              TEXT NOT NULL,
    type            TEXT NOT NULL,
    aggregate_type  TEXT,
    aggregate_id    TEXT,
    version         INTEGER,
    payload         TEXT NOT NULL,
    headers         TEXT,
    tenant          TEXT,
    not_before      INTEGER,
    created_at      INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    error           TEXT,
    dead_at         INTEGER NOT NULL,
    retrying        INTEGER NOT NULL DEFAULT 0, -- it is being retried, and its event is parked
    idempotency_key TEXT,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;

-- How individual events ended for a consumer, where positions and filters cannot tell: a row for
-- each dropped dead letter, and for each of the few events that a worker held when it vanished
-- during a filter change. Both are rare, and the row is deleted with its event.
CREATE TABLE outbox_ended (
    seq      INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('dropped', 'skipped', 'delivered')),
    PRIMARY KEY (seq, consumer)
) WITHOUT ROWID;

-- Deleting a dead letter drops the event, unless it was retried and is being settled.
CREATE TRIGGER outbox_note_drop AFTER DELETE ON outbox_dead WHEN OLD.retrying = 0
BEGIN
    INSERT OR REPLACE INTO outbox_ended (seq, consumer, state)
    SELECT OLD.seq, OLD.consumer, 'dropped' WHERE EXISTS (SELECT 1 FROM outbox_event WHERE seq = OLD.seq);
END;

-- Samples record when a consumer passed an event: at that time it was done with every event up to seq. Trimming takes one now
-- and then, and deletes those no longer needed (src/store/db/trim.c), so there are about 170 for a consumer, however many
-- events there are. Losing samples keeps events longer, and never deletes one too early.
CREATE TABLE outbox_passed (
    consumer TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;

-- Optional record of deliveries, with the sink's own id.
CREATE TABLE outbox_receipt (
    consumer TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    sink_id  TEXT,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE INDEX outbox_receipt_at ON outbox_receipt (at);

-- High-water marks: the last id that a consumer has written to each stream; for Redis it is hi-lo.
-- A program that reads its mark in the transaction of its rows has every entry up to the mark.
CREATE TABLE outbox_mark (
    stream   TEXT NOT NULL,
    consumer TEXT NOT NULL,
    hi       INTEGER NOT NULL,
    lo       INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (stream, consumer)
) WITHOUT ROWID;

-- The inbox: what a handler has handled, by the event's idempotency key, or its id.
CREATE TABLE outbox_handled (
    handler TEXT NOT NULL,
    key     TEXT NOT NULL,
    hash    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (handler, key)
) WITHOUT ROWID;
CREATE INDEX outbox_handled_at ON outbox_handled (at);

-- ---- adopted tables ----

-- Tables of the application whose rows become events. The trigger outbox_adopted_<name> on the
-- table does that; the row here stays when the trigger is dropped. mark: the column that is set
-- once `consumer` has received a row; key identifies a row; stamp is the SQL expression of the
-- mark's value.
CREATE TABLE outbox_adopted (
    source   TEXT PRIMARY KEY COLLATE NOCASE,
    mapping  TEXT NOT NULL,
    mark     TEXT,
    consumer TEXT,
    key      TEXT,
    stamp    TEXT,
    at       INTEGER NOT NULL
) WITHOUT ROWID;

-- Which row of a marked table became which undelivered event.
CREATE TABLE outbox_adopted_row (
    event_id TEXT PRIMARY KEY,
    source   TEXT NOT NULL COLLATE NOCASE,
    row                                     -- its key, of any type
) WITHOUT ROWID;

-- ---- views ----

-- The state of every stored event for every consumer whose type patterns match it, or matched it
-- when it was handed out. SQL alone can neither evaluate predicates nor compute the lane of a key.
-- Where it would have to, the state is `unknown`: for an event that a consumer with a predicate has
-- passed (delivered or skipped), and, with several lanes, for one that only some lanes have passed,
-- or that a claim of some lane spans. `outbox events` is exact in both cases. An expired claim does
-- not count: its events are pending, or failed if they failed before.
CREATE VIEW outbox_delivery AS
SELECT seq, event_id, type, consumer,
       CASE
           WHEN retrying = 0 THEN 'expired'
           WHEN parked AND parked_live THEN 'in-flight'
           WHEN parked_attempts > 0 OR failing_since IS NOT NULL THEN 'failed'
           WHEN parked OR seq > high THEN 'pending'
           WHEN seq <= start THEN 'before-start'
           WHEN seq > low THEN 'unknown'
           WHEN ended IS NULL AND seq > former_low THEN 'unknown'
           WHEN ended IS NULL AND NOT was_wanted THEN 'skipped'
           WHEN claim_live IS NOT NULL AND NOT lane_known THEN 'unknown'
           WHEN claim_live = 1 THEN 'in-flight'
           WHEN claim_live = 0 THEN 'pending'
           WHEN ended IS NOT NULL THEN ended
           WHEN predicate <> '' THEN 'unknown'
           ELSE 'delivered'
       END AS state,
       attempts, due_at, error
FROM (SELECT e.seq, e.id AS event_id, e.type, c.name AS consumer, c.start, d.retrying, x.state AS ended,
             p.seq IS NOT NULL AS parked, p.attempts AS parked_attempts, p.failing_since, p.due_at,
             coalesce(p.attempts, d.attempts, 0) AS attempts, coalesce(p.error, d.error) AS error,
             EXISTS (SELECT 1 FROM outbox_claim k WHERE k.consumer = c.name AND k.epoch = p.claim
                     AND k.locked_until > t.now) AS parked_live,
             c.lanes = 1 OR e.aggregate_id IS NULL AS lane_known,
             (SELECT min(l.position) FROM outbox_lane l WHERE l.consumer = c.name
              AND (e.aggregate_id IS NOT NULL OR l.lane = e.seq % c.lanes)) AS low,
             (SELECT max(l.position) FROM outbox_lane l WHERE l.consumer = c.name
              AND (e.aggregate_id IS NOT NULL OR l.lane = e.seq % c.lanes)) AS high,
             (SELECT max(k.locked_until > t.now) FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0
              AND e.seq > k.from_seq AND e.seq <= k.to_seq
              AND (c.lanes = 1 OR e.aggregate_id IS NOT NULL OR k.lane < 0 OR k.lane = e.seq % c.lanes)) AS claim_live,
             h.low AS former_low, coalesce(h.predicate, c.predicate) AS predicate,
             c.events = '' OR EXISTS (
                 SELECT 1 FROM json_each('[' || replace(json_quote(c.events), ',', '","') || ']') AS w
                 WHERE e.type GLOB trim(w.value)) AS wanted,
             coalesce(h.events, c.events) = '' OR EXISTS (
                 SELECT 1 FROM json_each('[' || replace(json_quote(coalesce(h.events, c.events)), ',', '","') || ']') AS w
                 WHERE e.type GLOB trim(w.value)) AS was_wanted
      FROM outbox_event e
      CROSS JOIN outbox_consumer c
      CROSS JOIN (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now) t
      LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = e.seq
      LEFT JOIN outbox_dead d ON d.consumer = c.name AND d.seq = e.seq
      LEFT JOIN outbox_ended x ON x.consumer = c.name AND x.seq = e.seq
      LEFT JOIN outbox_former_filter h ON h.consumer = c.name AND h.lane = 0 AND h.n =
                (SELECT min(g.n) FROM outbox_former_filter g WHERE g.consumer = c.name AND g.lane = 0 AND e.seq <= g.high))
WHERE wanted OR (seq <= high AND was_wanted) OR parked OR retrying IS NOT NULL OR ended IS NOT NULL;

-- ---- the five inspections (C1.9): a row for each event and consumer, as in PostgreSQL ----

-- Events that a worker would claim: pending, even in an expired claim, or failed and due again.
CREATE VIEW outbox_find_unprocessed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, d.due_at, d.error, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
WHERE d.state = 'pending' OR d.state = 'failed' AND d.due_at <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);

-- Events in a live claim.
CREATE VIEW outbox_find_processing AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, k.owner AS worker, k.epoch,
       k.locked_until, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
JOIN outbox_consumer c ON c.name = d.consumer
LEFT JOIN outbox_parked p ON p.consumer = d.consumer AND p.seq = d.seq
JOIN outbox_claim k ON k.consumer = d.consumer AND k.epoch = coalesce(p.claim,
     (SELECT max(x.epoch) FROM outbox_claim x WHERE x.consumer = d.consumer AND x.parked = 0
      AND d.seq > x.from_seq AND d.seq <= x.to_seq AND (c.lanes = 1 OR x.lane < 0 OR x.lane = d.seq % c.lanes)))
WHERE d.state = 'in-flight';

-- Events that failed and will be retried at due_at; NULL: once the event before it is delivered.
CREATE VIEW outbox_find_failed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, d.due_at, d.error, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq WHERE d.state = 'failed';

-- Dead letters that are not being retried.
CREATE VIEW outbox_find_abandoned AS
SELECT consumer, seq, id, type, aggregate_type, aggregate_id, payload, attempts, error, dead_at, created_at
FROM outbox_dead WHERE retrying = 0;

-- Delivered events that are still stored; if a predicate decides, those with a receipt.
CREATE VIEW outbox_find_published AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
WHERE d.state = 'delivered' OR d.state = 'unknown' AND EXISTS
      (SELECT 1 FROM outbox_receipt r WHERE r.consumer = d.consumer AND r.seq = d.seq AND r.event_id = e.id);

-- ---- names known from other outbox libraries (docs/coming-from.md) ----

-- The views cost nothing while they are not read. A table of the application that has such a name
-- is left alone. last_processed_id: the consumer is done with every event up to it. The retry is
-- that of the first event that failed and waits. last_processed_at is known if receipts are kept.
CREATE VIEW IF NOT EXISTS outbox_listeners AS
SELECT c.name AS listener_id,
       min((SELECT min(l.position) FROM outbox_lane l WHERE l.consumer = c.name),
           coalesce((SELECT min(k.from_seq) FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0), 9223372036854775807),
           coalesce((SELECT min(w.seq) - 1 FROM outbox_parked w WHERE w.consumer = c.name AND NOT EXISTS
                     (SELECT 1 FROM outbox_dead d WHERE d.consumer = w.consumer AND d.seq = w.seq)), 9223372036854775807))
           AS last_processed_id,
       r.at AS last_processed_at, coalesce(p.attempts, 0) AS retry_count, p.due_at AS retry_after, p.error AS last_error, c.created_at,
       max(c.created_at, coalesce(r.at, 0), coalesce(p.failed_at, 0), coalesce(c.report_at, 0)) AS updated_at
FROM outbox_consumer c
LEFT JOIN outbox_receipt r ON r.consumer = c.name AND r.seq = (SELECT max(x.seq) FROM outbox_receipt x WHERE x.consumer = c.name)
LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = (SELECT min(x.seq) FROM outbox_parked x
                                                              WHERE x.consumer = c.name AND x.failed_at IS NOT NULL);

CREATE VIEW IF NOT EXISTS outbox_dead_letters AS
SELECT consumer AS listener_id, seq AS outbox_event_id, error, dead_at AS failed_at FROM outbox_dead WHERE retrying = 0;

CREATE VIEW IF NOT EXISTS outbox_dlq AS
SELECT consumer, id AS original_outbox_id, type AS topic, aggregate_type AS aggregate_kind, aggregate_id,
       version AS source_entity_version, payload, headers AS telemetry_envelope, tenant AS tenant_id,
       attempts AS publish_attempts, error AS final_error, created_at, dead_at AS failed_at
FROM outbox_dead WHERE retrying = 0;

CREATE VIEW IF NOT EXISTS outbox_event_handled AS
SELECT handler AS handler_name, key AS idempotency_key, at AS handled_at FROM outbox_handled;

CREATE VIEW IF NOT EXISTS outbox_consumed_events AS
SELECT key AS event_id, handler AS consumer, at AS consumed_at FROM outbox_handled;

-- identity: of this outbox and its copies only. replaced: see outbox_event_inserted.
INSERT INTO outbox_meta (name, value) VALUES ('schema_version', '1'), ('identity', lower(hex(randomblob(16)))), ('replaced', 'no');
