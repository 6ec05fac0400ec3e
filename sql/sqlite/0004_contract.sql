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

-- What was delivered, as long as the event is kept.
CREATE VIEW outbox_find_published AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, e.created_at
FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq WHERE d.state = 'delivered';

UPDATE outbox_meta SET value = '4' WHERE name = 'schema_version';
