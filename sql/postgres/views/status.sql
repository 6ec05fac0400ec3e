-- consumer_status has a row for each consumer; docs/sql.md describes the columns.
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
       (SELECT count(*) FROM @schema@.dead d WHERE d.consumer = c.name AND NOT d.retrying) AS dead,
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

-- delivery shows the state of every kept event for every consumer whose type patterns match it, or
-- matched when it was handed out. Where SQL cannot evaluate a predicate (_wants), the column
-- predicate has its text, and an event that the consumer is past is `unknown`: delivered or
-- skipped.
CREATE OR REPLACE VIEW @schema@.delivery WITH (security_invoker = true) AS
SELECT e.seq, e.id::uuid AS event_id, e.type, c.name AS consumer, w.state,
       coalesce(p.attempts, d.attempts, 0) AS attempts,
       p.due_at,
       coalesce(p.error, d.error) AS error, w.predicate
FROM @schema@.event e JOIN @schema@.consumer c ON c.tenant = '' OR c.tenant = e.tenant
-- l: the current row of the event's lane, as in _lanes
CROSS JOIN LATERAL (
    SELECT p.seen, p.floor, p.target, p.pos, y.lane
    FROM (SELECT x.lane, x.leader FROM @schema@.lane x
          WHERE x.consumer = c.name
            AND x.lane = @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)
          ORDER BY x.version DESC LIMIT 1) y,
         LATERAL (SELECT * FROM @schema@.lane x
                  WHERE x.consumer = c.name AND x.lane = coalesce(y.leader, y.lane)
                  ORDER BY x.version DESC LIMIT 1) p) l
-- h: whether the lane is past the event or never gets it, and whether the present filter matches
CROSS JOIN LATERAL (
    SELECT @schema@._handed_out(l.seen, l.floor, l.target, l.pos, e.xid, e.seq)
           OR e.seq <= @schema@._starts_after(c.start_seen, c.start_floor) AS out,
           c.type_like IS NULL OR e.type LIKE ANY (c.type_like) AS wanted) h
LEFT JOIN @schema@.parked p ON p.consumer = c.name AND p.seq = e.seq
LEFT JOIN @schema@.dead d ON d.consumer = c.name AND d.seq = e.seq
LEFT JOIN @schema@.ended x ON x.consumer = c.name AND x.seq = e.seq
-- f: the filter in force at the handout: the first that was replaced after it, or the present one
CROSS JOIN LATERAL (
    SELECT y.type_like IS NULL OR e.type LIKE ANY (y.type_like) AS wanted, y.predicate
    FROM ((SELECT b.type_like, b.predicate
           FROM @schema@.former_filter b
           WHERE h.out AND b.consumer = c.name
             AND b.lane = @schema@._lane_of(b.lanes, e.seq, e.aggregate_type, e.aggregate_id)
             AND (@schema@._handed_out(b.seen, b.floor, b.target, b.pos, e.xid, e.seq)
                  OR e.seq = ANY (b.also))
           ORDER BY b.n LIMIT 1)
          UNION ALL
          SELECT c.type_like, c.predicate
          LIMIT 1) y) f
-- k: whether the claim of the event is live; NULL if no claim has the event
LEFT JOIN LATERAL (
    SELECT max(k.locked_until) > @schema@._clock() AS live FROM @schema@.claim k
    WHERE k.consumer = c.name AND k.epoch = p.claim
       OR p.seq IS NULL AND h.out
          AND k.consumer = c.name AND k.lane >= 0
          AND @schema@._is_member(k.members, k.lane, l.lane)
          AND e.seq > k.from_seq AND e.seq <= k.to_seq
          AND NOT pg_visible_in_snapshot(e.xid, k.seen)
          AND pg_visible_in_snapshot(e.xid, k.target)) k ON true
-- s: the state, apart from the predicate
CROSS JOIN LATERAL (
    SELECT CASE
               WHEN NOT d.retrying THEN 'expired'
               WHEN p.seq IS NOT NULL AND k.live THEN 'in-flight'
               WHEN p.attempts > 0 OR p.failing_since IS NOT NULL THEN 'failed'
               WHEN p.seq IS NOT NULL OR NOT h.out THEN 'pending'
               WHEN @schema@._before_start(c.start_seen, c.start_floor, c.start_also, e.xid, e.seq)
                   THEN 'before-start'
               WHEN NOT f.wanted AND x.state IS NULL THEN 'skipped'
               WHEN k.live THEN 'in-flight'
               WHEN NOT k.live THEN 'pending'
               WHEN x.state IS NOT NULL THEN x.state
               WHEN f.predicate <> '' THEN 'unknown'
               ELSE 'delivered'
           END AS state
    OFFSET 0) s
-- a: the predicate that applies, and its result
CROSS JOIN LATERAL (
    SELECT x.predicate,
           CASE WHEN x.predicate <> '' THEN @schema@._wants(x.predicate, e.payload) END AS wants
    FROM (SELECT CASE WHEN s.state NOT IN ('in-flight', 'pending', 'unknown') THEN ''
                      WHEN p.seq IS NULL AND h.out THEN f.predicate
                      WHEN p.seq IS NULL OR p.crashes > 0 THEN c.predicate
                      ELSE '' END AS predicate) x
    OFFSET 0) a
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT a.wants THEN 'skipped'
                WHEN a.wants AND s.state = 'unknown' THEN 'delivered'
                ELSE s.state END AS state,
           CASE WHEN a.wants IS NULL THEN a.predicate ELSE '' END AS predicate) w
WHERE h.wanted OR f.wanted OR p.seq IS NOT NULL OR d.seq IS NOT NULL OR x.seq IS NOT NULL;
COMMENT ON VIEW @schema@.delivery IS 'the state of every event for every consumer';

-- held_here and works_here show what was granted to their reader. Row-level security reads them in
-- every statement. They have their owner's rights, but current_user is the reader; as security
-- barriers they run no function of the reader on rows that it may not see.

-- held_here has the tenants that the reader is bound to.
CREATE OR REPLACE VIEW @schema@.held_here WITH (security_barrier = true) AS
SELECT h.tenant FROM @schema@.held h WHERE @schema@._inherits(current_user, h.role);
COMMENT ON VIEW @schema@.held_here IS 'which tenants the reader is held to';
GRANT SELECT ON @schema@.held_here TO PUBLIC;

-- works_here has the consumers that the reader may work on, as granted: names or patterns.
CREATE OR REPLACE VIEW @schema@.works_here WITH (security_barrier = true) AS
SELECT w.consumer FROM @schema@.worker w WHERE @schema@._inherits(current_user, w.role);
COMMENT ON VIEW @schema@.works_here IS 'which consumers the reader may work on';
GRANT SELECT ON @schema@.works_here TO PUBLIC;
