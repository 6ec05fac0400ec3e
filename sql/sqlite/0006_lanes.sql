-- The outbox in a SQLite database, version 6: a worker that has all lanes claims from them as from one, and a claim
-- lists its parked events.

-- The lane of such a claim is -1. A relay of an earlier version would take its lanes for free ones: it claims nothing any more. In
-- outbox_lane, the highest number that was handed out is that of the lane that has the highest. A claim without events
-- (from_seq = to_seq) sets a lane aside for a worker that found all of them taken.

-- Which parked events a claim has, as a JSON array of their numbers. It takes the place of an index, into which each event that failed
-- went and out of which it came again.
ALTER TABLE outbox_claim ADD COLUMN seqs TEXT;
UPDATE outbox_claim SET seqs = (SELECT json_group_array(p.seq) FROM outbox_parked p
                                WHERE p.consumer = outbox_claim.consumer AND p.claim = outbox_claim.epoch)
WHERE parked;
DROP INDEX outbox_parked_claim;

-- As before, for claims of all lanes as well.
DROP VIEW outbox_delivery;
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

DROP VIEW outbox_find_processing;
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

UPDATE outbox_meta SET value = '6' WHERE name = 'schema_version';
