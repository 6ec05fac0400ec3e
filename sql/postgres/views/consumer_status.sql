-- consumer_status: how every consumer is.
CREATE OR REPLACE VIEW @schema@.consumer_status WITH (security_invoker = true) AS
SELECT c.name, c.events, c.predicate, c.ordering, c.lanes, c.retry, c.paused, c.created_at, c.report, c.report_at,
       l.position, greatest(coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) - l.position, 0) AS behind,
       (SELECT e.created_at FROM @schema@.event e WHERE e.seq > l.position ORDER BY e.seq LIMIT 1) AS oldest_at,
       l.delivered, coalesce(k.inflight, 0) AS inflight, k.owner,
       (SELECT count(*) FROM @schema@.parked p WHERE p.consumer = c.name) AS parked,
       (SELECT count(*) FROM @schema@.dead d WHERE d.consumer = c.name AND NOT d.retrying) AS dead,
       (SELECT min(p.due_at) FROM @schema@.parked p WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at IS NOT NULL)
           AS next_due,
       f.error AS last_error, f.failed_at AS last_error_at, o.floor, o.pin AS floor_pin
FROM @schema@.consumer c
CROSS JOIN LATERAL (SELECT min(CASE WHEN x.lane < 0 THEN NULL WHEN x.target IS NULL THEN x.floor
                                    ELSE greatest(x.floor, x.pos) END) AS position, sum(x.delivered)::bigint AS delivered
                    FROM @schema@.lanes(c.name, c.lanes) x) l
LEFT JOIN LATERAL (SELECT count(*) AS inflight, (array_agg(x.owner ORDER BY x.epoch DESC))[1] AS owner FROM @schema@.claim x
                   WHERE x.consumer = c.name AND x.locked_until > @schema@.clock()) k ON true
LEFT JOIN LATERAL (SELECT p.error, p.failed_at FROM @schema@.parked p WHERE p.consumer = c.name AND p.failed_at IS NOT NULL
                   ORDER BY p.failed_at DESC LIMIT 1) f ON true
JOIN @schema@.floors() o ON o.consumer = c.name;
COMMENT ON VIEW @schema@.consumer_status IS 'how every consumer is';
