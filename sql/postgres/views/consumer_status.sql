-- consumer_status shows how every consumer is doing, a row for each.
--
-- behind is the number of events that wait to be claimed. It is exact if behind_exact says so, and
-- otherwise an estimate from 10,000 events. A predicate on the payload cannot be asked here, so
-- for a consumer with one, behind and inflight include events that the worker will leave out.
CREATE OR REPLACE VIEW @schema@.consumer_status WITH (security_invoker = true) AS
SELECT c.name, c.events, c.predicate, c.ordering, c.lanes, c.retry, c.paused, c.created_at,
       c.report, c.report_at,
       l.place AS position, b.n AS behind, b.oldest_at, l.delivered,
       coalesce(k.events, 0) AS inflight, k.owner,
       -- What is in a live claim is in flight, not parked.
       (SELECT count(*) FROM @schema@.parked p
        WHERE p.consumer = c.name AND NOT coalesce(p.claim = ANY (k.live), false)) AS parked,
       (SELECT count(*) FROM @schema@.dead d
        WHERE d.consumer = c.name AND NOT d.retrying) AS dead,
       (SELECT min(p.due_at) FROM @schema@.parked p
        WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at IS NOT NULL) AS next_due,
       f.error AS last_error, f.failed_at AS last_error_at, o.floor, o.pin AS floor_pin,
       coalesce(k.claims, 0) AS claims, b.exact AND c.predicate = '' AS behind_exact,
       CASE WHEN c.report LIKE 'sink is down%' THEN c.report_at END AS down_since
FROM @schema@.consumer c
CROSS JOIN LATERAL @schema@._progress(c.name, c.lanes) l
CROSS JOIN LATERAL @schema@._backlog(c.name, 10000) b
-- k: its live claims; the owner named is that of the newest
LEFT JOIN LATERAL (SELECT count(*) AS claims,
                          (array_agg(x.owner ORDER BY x.epoch DESC))[1] AS owner,
                          array_agg(x.epoch) AS live,
                          sum((SELECT count(*) FROM @schema@._claimed(c.name, x.epoch)))::bigint
                              AS events
                   FROM @schema@.claim x
                   WHERE x.consumer = c.name AND x.locked_until > @schema@._clock()) k ON true
-- f: the latest failure among the events that still wait
LEFT JOIN LATERAL (SELECT p.error, p.failed_at
                   FROM @schema@.parked p
                   WHERE p.consumer = c.name AND p.failed_at IS NOT NULL
                   ORDER BY p.failed_at DESC
                   LIMIT 1) f ON true
JOIN @schema@._floors() o ON o.consumer = c.name;
COMMENT ON VIEW @schema@.consumer_status IS 'how every consumer is';
