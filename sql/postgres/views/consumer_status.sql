-- consumer_status has a row for each consumer, with its settings and its state; docs/sql.md
-- describes the columns.
--
-- behind is the number of undelivered events: unclaimed, in flight and parked. It is exact if
-- behind_exact is true. A predicate on the payload is not evaluated here, so for a consumer with a
-- predicate, behind and inflight include events that the worker will skip. Counting is bounded (see
-- _backlog and _parked_summary), so that the cost does not grow with the backlog.
CREATE OR REPLACE VIEW @schema@.consumer_status WITH (security_invoker = true) AS
SELECT c.name, c.events, c.predicate, c.ordering, c.lanes, c.retry, c.paused, c.created_at,
       c.report, c.report_at,
       l.place AS position, b.n + b.held + p.n AS behind,
       least(b.oldest_at, b.held_at, p.oldest_at) AS oldest_at, l.delivered,
       b.held + coalesce(k.parked, 0) AS inflight, k.owner,
       -- A parked event in a live claim counts as in flight.
       greatest(p.n - coalesce(k.parked, 0), 0) AS parked,
       (SELECT count(*) FROM @schema@.dead d
        WHERE d.consumer = c.name AND NOT d.retrying) AS dead,
       (SELECT min(x.due_at) FROM @schema@.parked x
        WHERE x.consumer = c.name AND x.claim IS NULL AND x.due_at IS NOT NULL) AS next_due,
       p.error AS last_error, p.failed_at AS last_error_at, o.floor, o.pin AS floor_pin,
       coalesce(k.claims, 0) AS claims, b.exact AND p.exact AND c.predicate = '' AS behind_exact,
       CASE WHEN c.report LIKE 'sink is down%' THEN c.report_at END AS down_since,
       p.exact AS parked_exact, b.oldest_at AS unclaimed_at, p.oldest_at AS parked_at,
       least(b.overdue_at, p.overdue_at) AS overdue_at,
       p.first_seq, p.first_attempts, p.first_due, p.first_error, p.overdue_at AS first_since
FROM @schema@.consumer c
CROSS JOIN LATERAL @schema@._progress(c.name, c.lanes) l
CROSS JOIN LATERAL @schema@._backlog(c.name, 10000) b
CROSS JOIN LATERAL @schema@._parked_summary(c.name) p
-- k: the live claims, the number of parked events in them, and the owner of the newest
LEFT JOIN LATERAL (SELECT count(*) AS claims,
                          (array_agg(x.owner ORDER BY x.epoch DESC))[1] AS owner,
                          sum(CASE WHEN x.lane < 0
                                   THEN (SELECT count(*) FROM @schema@._claimed(c.name, x.epoch))
                                   END)::bigint AS parked
                   FROM @schema@.claim x
                   WHERE x.consumer = c.name AND x.locked_until > @schema@._clock()) k ON true
JOIN @schema@._floors() o ON o.consumer = c.name;
COMMENT ON VIEW @schema@.consumer_status IS 'the status of every consumer';
