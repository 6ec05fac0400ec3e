-- The outbox in a SQLite database, version 4: the contract, to the letter.

-- ---- the five inspections (C1.9): a row for each event and consumer, as the functions of these names in PostgreSQL have ----

-- What a worker would get: pending, those of an expired claim among them, or failed and due again.
CREATE VIEW outbox_find_unprocessed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, d.due_at, d.error, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
WHERE d.state = 'pending' OR d.state = 'failed' AND d.due_at <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);

-- What a worker has in hand: in a live claim.
CREATE VIEW outbox_find_processing AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, k.owner AS worker, k.epoch,
       k.locked_until, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
JOIN outbox_consumer c ON c.name = d.consumer
LEFT JOIN outbox_parked p ON p.consumer = d.consumer AND p.seq = d.seq
JOIN outbox_claim k ON k.consumer = d.consumer AND k.epoch = coalesce(p.claim,
     (SELECT max(x.epoch) FROM outbox_claim x WHERE x.consumer = d.consumer AND x.parked = 0
      AND d.seq > x.from_seq AND d.seq <= x.to_seq AND (c.lanes = 1 OR x.lane = d.seq % c.lanes)))
WHERE d.state = 'in-flight';

-- What failed, and will be tried again at due_at; NULL: once what it waits behind is through.
CREATE VIEW outbox_find_failed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts, d.due_at, d.error, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq WHERE d.state = 'failed';

-- What was given up: dead letters that were not sent back.
CREATE VIEW outbox_find_abandoned AS
SELECT consumer, seq, id, type, aggregate_type, aggregate_id, payload, attempts, error, dead_at, created_at
FROM outbox_dead WHERE retrying = 0;

-- What was delivered, as long as the event is kept. Where a predicate decides, which SQL cannot ask, a receipt tells.
CREATE VIEW outbox_find_published AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq
WHERE d.state = 'delivered' OR d.state = 'unknown' AND EXISTS
      (SELECT 1 FROM outbox_receipt r WHERE r.consumer = d.consumer AND r.seq = d.seq AND r.event_id = e.id);

-- ---- names that people bring along from another outbox (docs/coming-from.md) ----

-- They cost nothing while nobody reads them. A table of the application's that has such a name already is left alone.
-- last_processed_id: everything up to it is done with. The retry is that of the first event that failed and waits.
-- last_processed_at is known where receipts are kept.
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

-- ---- retention counts from delivery ----

-- When a consumer got past an event is told by samples: at that time it was done with every event up to seq. Trimming takes one
-- now and then, and forgets those nobody asks for any more (src/store/db/trim.c), so there are about 170 for a consumer,
-- however many events there are. To lose samples keeps events longer, and deletes none too early.
CREATE TABLE outbox_passed (
    consumer TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) WITHOUT ROWID;

-- ---- the inbox goes by the idempotency key of an event that has one (C0.3) ----

-- The event keeps its key: the table of keys forgets after a while, and an event may wait longer. Events that are there have none
-- here, and go on by their id, so that what handlers have recorded for them counts.
-- A plain INSERT can give its event a key. With one that is known it fails ("UNIQUE constraint failed: outbox_event.idempotency_key");
-- INSERT OR IGNORE stores nothing then, changes 0 rows, and RETURNING gives none. A key is known for as long as its event is
-- kept: for retention after its delivery at least. An index and no trigger: an INSERT without a key takes no longer than before.
ALTER TABLE outbox_event ADD COLUMN idempotency_key TEXT
    CONSTRAINT "idempotency_key: 1 to 1024 bytes, no control character" CHECK (idempotency_key IS NULL OR
        idempotency_key BETWEEN ' ' AND printf('%.1024s', idempotency_key) AND idempotency_key NOT GLOB
        CAST(x'2a5b012d1f7f2dc29f5d2a' AS TEXT));
ALTER TABLE outbox_dead ADD COLUMN idempotency_key TEXT;
CREATE UNIQUE INDEX outbox_event_idempotency ON outbox_event (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- ---- ids: they grow within a millisecond, too ----

-- Behind the time stand 24 bits of how much was changed on this connection, which grows with every event, then 50 random bits;
-- src/base/uuid7.c does the same. The clock is rounded as the program does it: its fractions are lost in a day's. A default
-- cannot be altered, but nothing that is stored goes by it: so its text is changed in place, as SQLite's manual has it for this
-- (ALTER TABLE, "making other kinds of table schema changes"), and no event is copied. That views are made here tells other
-- connections to read the schema anew.
PRAGMA writable_schema = ON;
UPDATE sqlite_master SET sql = replace(replace(replace(sql,
        '* 86400000 >> 16', '* 86400000 + 0.5 >> 16'), '* 86400000 & 65535', '* 86400000 + 0.5 & 65535'),
        'random() & 4095, random() & 16383 | 32768',
        'total_changes() >> 12 & 4095, ((total_changes() & 4095 | 8192) << 2) + (random() & 3)')
WHERE type = 'table' AND name = 'outbox_event';
PRAGMA writable_schema = RESET;

-- ---- adopted tables ----

-- Tables of the application's own whose rows become events: by a trigger on the table, outbox_adopted_<name>, while it is adopted; the
-- row stays when that is undone. mark: the column that is set when `consumer` has had a row; key tells rows apart; stamp is the
-- SQL of what it is set to.
CREATE TABLE outbox_adopted (
    source   TEXT PRIMARY KEY COLLATE NOCASE,
    mapping  TEXT NOT NULL,
    mark     TEXT,
    consumer TEXT,
    key      TEXT,
    stamp    TEXT,
    at       INTEGER NOT NULL
) WITHOUT ROWID;

-- Of tables whose rows are marked: which row became which event, until it is marked. Never many more than wait for delivery.
CREATE TABLE outbox_adopted_row (
    event_id TEXT PRIMARY KEY,
    source   TEXT NOT NULL COLLATE NOCASE,
    row                                     -- its key, of whatever type
) WITHOUT ROWID;

UPDATE outbox_meta SET value = '4' WHERE name = 'schema_version';
