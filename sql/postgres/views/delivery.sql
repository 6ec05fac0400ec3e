-- delivery: the state of every kept event for every consumer whose type patterns match it. The payload predicate is not
-- looked at: an event it excludes shows as delivered once the consumer is past it. `outbox events` is exact there, too.
CREATE OR REPLACE VIEW @schema@.delivery WITH (security_invoker = true) AS
SELECT e.seq, e.id AS event_id, e.type, c.name AS consumer,
       CASE
           WHEN d.seq IS NOT NULL AND NOT d.retrying THEN 'expired'
           WHEN p.claim IS NOT NULL THEN 'in-flight'
           WHEN p.attempts > 0 THEN 'failed'
           WHEN p.seq IS NOT NULL THEN 'pending'
           WHEN EXISTS (SELECT 1 FROM @schema@.claim k WHERE k.consumer = c.name AND k.lane = l.lane
                        AND e.seq > k.from_seq AND e.seq <= k.to_seq AND NOT pg_visible_in_snapshot(e.xid, k.seen)
                        AND pg_visible_in_snapshot(e.xid, k.target)) THEN 'in-flight'
           WHEN @schema@.handed_out(l.seen, l.floor, l.target, l.pos, e.xid, e.seq) THEN 'delivered'
           ELSE 'pending'
       END AS state,
       coalesce(p.attempts, d.attempts, 0) AS attempts,
       p.due_at,
       coalesce(p.error, d.error) AS error
FROM @schema@.event e
CROSS JOIN @schema@.consumer c
CROSS JOIN LATERAL (SELECT * FROM @schema@.lane x WHERE x.consumer = c.name
    AND x.lane = @schema@.lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id) ORDER BY x.version DESC LIMIT 1) l
LEFT JOIN @schema@.parked p ON p.consumer = c.name AND p.seq = e.seq
LEFT JOIN @schema@.dead d ON d.consumer = c.name AND d.seq = e.seq
WHERE c.type_like IS NULL OR e.type LIKE ANY (c.type_like);
COMMENT ON VIEW @schema@.delivery IS 'the state of every event for every consumer';
