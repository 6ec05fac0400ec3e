-- The outbox in a SQLite database, version 1. It may share the file with the application's own tables.
--
-- To change anything here: add a file 0002_*.sql that alters what this one made, list it in src/meson.build,
-- and never edit a migration that was released. Times are milliseconds since 1970.

CREATE TABLE outbox_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Events are only ever inserted, and trimmed from the old end. seq is commit order, because SQLite has one writer at a
-- time; AUTOINCREMENT, so that a number is never used again. Any language may produce with a plain
--     INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES (...)
CREATE TABLE outbox_event (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE DEFAULT (lower(
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), 1, 8) || '-' ||
        substr(printf('%012x', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), 9, 4) || '-7' ||
        substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (random() & 3), 1) ||
        substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    -- x'...' is '*[^A- ^?]*': any control character or space. A literal, because it is looked at for every event.
    type           TEXT NOT NULL CHECK (length(type) BETWEEN 1 AND 255 AND
                       type NOT GLOB CAST(x'2a5b012d207f5d2a' AS TEXT)),
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    payload        TEXT NOT NULL DEFAULT 'null' CHECK (json_valid(payload) AND length(payload) <= 67108864),
    headers        TEXT CHECK (headers IS NULL OR json_type(headers) = 'object'),
    tenant         TEXT,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL))
);

-- Keys under which events were emitted, so that emitting again gives no second event.
CREATE TABLE outbox_idempotency (
    key      TEXT PRIMARY KEY,
    event_id TEXT NOT NULL,
    hash     INTEGER NOT NULL,     -- of what was emitted
    at       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX outbox_idempotency_at ON outbox_idempotency (at);

CREATE TABLE outbox_consumer (
    name       TEXT PRIMARY KEY,
    events     TEXT NOT NULL,      -- type patterns, '' for all
    predicate  TEXT NOT NULL,      -- on the payload, '' for none
    ordering   TEXT NOT NULL CHECK (ordering IN ('none', 'key', 'global')),
    lanes      INTEGER NOT NULL,
    retry      TEXT NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    epoch      INTEGER NOT NULL DEFAULT 0,      -- grows with every claim: the fence
    delivered  INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    report     TEXT,                            -- what its relay last had to say
    report_at  INTEGER
) WITHOUT ROWID;

-- Everything up to position has been handed out: it is in a claim, parked, dead, or delivered.
CREATE TABLE outbox_lane (
    consumer TEXT NOT NULL,
    lane     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (consumer, lane)
) WITHOUT ROWID;

-- A lease: the events of (from_seq, to_seq] in that lane, or the parked events that carry this epoch.
CREATE TABLE outbox_claim (
    consumer     TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    parked       INTEGER NOT NULL,
    from_seq     INTEGER NOT NULL,
    to_seq       INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    locked_until INTEGER NOT NULL,
    lease        INTEGER NOT NULL,          -- its length: locked_until is never further ahead, whatever the clock did
    PRIMARY KEY (consumer, epoch)
) WITHOUT ROWID;

-- Events that wait: for a retry, for their time, or behind an event of their own key (due_at IS NULL).
CREATE TABLE outbox_parked (
    consumer  TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    key       INTEGER NOT NULL,             -- what order goes by; 0: nothing
    attempts  INTEGER NOT NULL,
    due_at    INTEGER,
    wait      INTEGER NOT NULL DEFAULT 0,   -- what it was told to wait: due_at is never further ahead
    careful   INTEGER NOT NULL DEFAULT 0,   -- was in flight when a worker vanished: alone, attempt counted first
    delayed   INTEGER NOT NULL DEFAULT 0,   -- waits for its not_before
    claim     INTEGER,                      -- epoch of the claim that holds it
    error     TEXT,
    failed_at INTEGER,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;
CREATE INDEX outbox_parked_due ON outbox_parked (consumer, due_at, seq) WHERE claim IS NULL AND due_at IS NOT NULL;
CREATE INDEX outbox_parked_key ON outbox_parked (consumer, key, seq);
CREATE INDEX outbox_parked_claim ON outbox_parked (consumer, claim) WHERE claim IS NOT NULL;

-- Dead letters: the whole event, so that trimming takes nothing away from it.
CREATE TABLE outbox_dead (
    consumer       TEXT NOT NULL,
    seq            INTEGER NOT NULL,
    id             TEXT NOT NULL,
    type           TEXT NOT NULL,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    payload        TEXT NOT NULL,
    headers        TEXT,
    tenant         TEXT,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    error          TEXT,
    dead_at        INTEGER NOT NULL,
    retrying       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;

-- The inbox: what a handler has taken effect for.
CREATE TABLE outbox_handled (
    handler TEXT NOT NULL,
    key     TEXT NOT NULL,
    hash    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (handler, key)
) WITHOUT ROWID;
CREATE INDEX outbox_handled_at ON outbox_handled (at);

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

-- High-water marks: the last id in each stream that a consumer has written to; Redis writes it hi-lo. Read it in the same
-- transaction as your rows, and those hold everything that is in the stream up to it.
CREATE TABLE outbox_mark (
    stream   TEXT NOT NULL,
    consumer TEXT NOT NULL,
    hi       INTEGER NOT NULL,
    lo       INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (stream, consumer)
) WITHOUT ROWID;

-- The state of every kept event for every consumer whose type patterns match it. The payload predicate is not looked at:
-- an event it excludes shows as delivered once the position is past it. With several lanes an event shows as pending
-- until all lanes are past it. `outbox events` is exact in both.
CREATE VIEW outbox_delivery AS
SELECT e.seq, e.id AS event_id, e.type, c.name AS consumer,
       CASE
           WHEN d.seq IS NOT NULL AND d.retrying = 0 THEN 'expired'
           WHEN p.claim IS NOT NULL THEN 'in-flight'
           WHEN p.attempts > 0 THEN 'failed'
           WHEN p.seq IS NOT NULL THEN 'pending'
           WHEN EXISTS (SELECT 1 FROM outbox_claim k WHERE k.consumer = c.name AND k.parked = 0
                        AND e.seq > k.from_seq AND e.seq <= k.to_seq) THEN 'in-flight'
           WHEN e.seq <= (SELECT min(position) FROM outbox_lane l WHERE l.consumer = c.name) THEN 'delivered'
           ELSE 'pending'
       END AS state,
       coalesce(p.attempts, d.attempts, 0) AS attempts,
       p.due_at,
       coalesce(p.error, d.error) AS error
FROM outbox_event e
CROSS JOIN outbox_consumer c
LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = e.seq
LEFT JOIN outbox_dead d ON d.consumer = c.name AND d.seq = e.seq
WHERE c.events = ''
   OR EXISTS (SELECT 1 FROM json_each('[' || replace(json_quote(c.events), ',', '","') || ']') AS w
              WHERE e.type GLOB trim(w.value));

INSERT INTO outbox_meta (name, value) VALUES ('schema_version', '1');
