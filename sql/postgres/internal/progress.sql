-- How far consumers have come, and which events they still need.

-- _low returns the seq up to which every lane of a consumer, which has `lanes` of them, is past
-- everything but what was late: events of transactions that were running when a lane polled. NULL:
-- its rows in lane are gone. Past what the target neither shows nor names, nothing is known by its
-- seq alone.
CREATE OR REPLACE FUNCTION @schema@._low(consumer text, lanes int) RETURNS bigint
LANGUAGE sql STABLE AS $outbox$
    SELECT min(CASE WHEN l.target IS NULL THEN l.floor
                    ELSE least(greatest(l.floor, l.pos), l.next_floor) END)
    FROM @schema@._lanes(_low.consumer, _low.lanes) l
    WHERE l.lane >= 0
$outbox$;

-- _floors returns for each consumer the seq up to which it no longer needs events, and what keeps
-- it there (pin): its position, a claim, a parked event, or a lost place.
CREATE OR REPLACE FUNCTION @schema@._floors()
RETURNS TABLE (consumer text, paused boolean, floor bigint, pin text)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    -- The lowest candidate counts. Of equal ones, the pin with the lowest rank is named.
    SELECT DISTINCT ON (f.consumer) f.consumer, f.paused, f.floor, f.pin
    FROM (SELECT c.name AS consumer, c.paused,
                 CASE WHEN l.target IS NULL THEN l.floor ELSE greatest(l.floor, l.pos) END AS floor,
                 'position' AS pin, 2 AS rank
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE l.lane >= 0
          UNION ALL
          -- The position is past what is claimed, but a claim may be taken over and read again.
          SELECT c.name, c.paused, greatest(k.floor, k.from_seq), 'claim', 1
          FROM @schema@.consumer c
          JOIN @schema@.claim k ON k.consumer = c.name AND k.lane >= 0
          UNION ALL
          -- Rows of lane are gone: it is unknown where the consumer is, so it may need everything.
          SELECT c.name, c.paused, 0, 'lost place', 0
          FROM @schema@.consumer c
          WHERE (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes
          UNION ALL
          -- A dead letter that was sent back is parked as well, but has a copy of its event. The
          -- first of the others is found by the order of the index: an aggregate would read all.
          SELECT c.name, c.paused, p.seq - 1, 'parked', 0
          FROM @schema@.consumer c,
               LATERAL (SELECT x.seq
                        FROM @schema@.parked x
                        WHERE x.consumer = c.name
                          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                                          WHERE d.consumer = x.consumer AND d.seq = x.seq)
                        ORDER BY x.seq LIMIT 1) p) f
    ORDER BY f.consumer, f.floor, f.rank
$outbox$;

-- _needed returns whether any consumer may still need an event: a lane that has not handed it out,
-- a claim that may be handed out again, or a consumer that has the event parked. A dead letter
-- holds a copy of its event, so a letter that was sent back does not need the event itself.
CREATE OR REPLACE FUNCTION @schema@._needed(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1
                   FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0
                     AND _needed.seq > @schema@._starts_after(c.start_seen, c.start_floor)
                     AND NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos,
                                                  _needed.xid, _needed.seq))
        OR EXISTS (SELECT 1 FROM @schema@.claim k
                   WHERE k.lane >= 0 AND _needed.seq > k.from_seq AND _needed.seq <= k.to_seq
                     AND NOT pg_visible_in_snapshot(_needed.xid, k.seen)
                     AND pg_visible_in_snapshot(_needed.xid, k.target))
        OR EXISTS (SELECT 1
                   FROM @schema@.parked p JOIN @schema@.consumer c ON c.name = p.consumer
                   WHERE p.seq = _needed.seq
                     AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                                     WHERE d.consumer = p.consumer AND d.seq = p.seq))
$outbox$;

-- _surely_done returns a transaction number. Events of earlier transactions have been seen by every
-- lane of every consumer, and are in no claim. So no consumer needs those below the floor, and
-- _needed does not have to be asked for each of them. Claims count because a claim of late events
-- holds some that are below its own floor.
CREATE OR REPLACE FUNCTION @schema@._surely_done() RETURNS xid8
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(pg_snapshot_xmin(s.seen)::text::bigint), 0)::text::xid8
    FROM (SELECT l.seen
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
          WHERE l.lane >= 0
          UNION ALL
          SELECT k.seen FROM @schema@.claim k WHERE k.lane >= 0) s
$outbox$;

-- _progress returns where a consumer with `lanes` lanes is, by the lane that is furthest behind,
-- and how many events it has been delivered. Lane -1, of the parked events, has no place. It is not
-- inlined: for a statement over all consumers the planner would expect 1,000 lanes of each, and use
-- JIT.
CREATE OR REPLACE FUNCTION @schema@._progress(
    consumer text, lanes int, OUT place bigint, OUT delivered bigint)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    SELECT min(CASE WHEN x.lane < 0 THEN NULL
                    WHEN x.target IS NULL THEN x.floor
                    ELSE greatest(x.floor, x.pos) END),
           sum(x.delivered)::bigint
    FROM @schema@._lanes(_progress.consumer, _progress.lanes) x
$outbox$;

-- _parked_events returns the first max_rows parked events of a consumer, in or out of a claim, in
-- order of seq, which is that of the primary key: the rest is not touched. Neither function leaves
-- the index to the planner: see _parked_rows.
CREATE OR REPLACE FUNCTION @schema@._parked_events(consumer text, max_rows int)
RETURNS TABLE (seq bigint, type text, created_at timestamptz, error text, failed_at timestamptz)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $outbox$
    SELECT p.seq, e.type, e.created_at, p.error, p.failed_at
    FROM (SELECT x.seq, x.error, x.failed_at FROM @schema@.parked x
          WHERE x.consumer = _parked_events.consumer
          ORDER BY x.seq LIMIT _parked_events.max_rows) p,
         -- An event that was trimmed while parked is a dead letter sent back, which is kept whole.
         LATERAL (SELECT i.type, i.created_at FROM @schema@.event i WHERE i.seq = p.seq
                  UNION ALL
                  SELECT d.type, d.created_at FROM @schema@.dead d
                  WHERE d.consumer = _parked_events.consumer AND d.seq = p.seq
                  LIMIT 1) e
$outbox$;

-- _parked_summary returns how many events of a consumer are parked, in or out of a claim, and which
-- has waited longest, at a cost that does not grow with their number.
--
-- n is exact below 10,000. Beyond that it is extrapolated: the share that those counted have of the
-- sequence numbers between them stands for the rest, up to the last parked event. Of the first
-- 1,000, oldest_at is when the oldest was emitted, and error that of the one that failed last. Of
-- the 1,000 whose time comes first, first_seq is the oldest that is not just waiting for its
-- not_before, and overdue_at is when it could first have been delivered. Only the first event of a
-- key has a time.
CREATE OR REPLACE FUNCTION @schema@._parked_summary(
    consumer text, OUT n bigint, OUT exact boolean, OUT oldest_at timestamptz, OUT error text,
    OUT failed_at timestamptz, OUT first_seq bigint, OUT first_attempts int,
    OUT first_due timestamptz, OUT first_error text, OUT overdue_at timestamptz)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
DECLARE
    low bigint;
    high bigint;
    last bigint;
BEGIN
    SELECT count(*), min(s.seq), max(s.seq)
    INTO n, low, high
    FROM (SELECT p.seq FROM @schema@.parked p
          WHERE p.consumer = $1 ORDER BY p.seq LIMIT 10000) s;
    exact := n < 10000;
    IF n = 0 THEN
        RETURN; -- as it is most of the time
    END IF;
    IF NOT exact THEN
        SELECT p.seq INTO last FROM @schema@.parked p
        WHERE p.consumer = $1 ORDER BY p.seq DESC LIMIT 1;
        n := ceil(n::numeric * (last - low + 1) / (high - low + 1));
    END IF;

    SELECT min(e.created_at), (array_agg(e.error ORDER BY e.failed_at DESC NULLS LAST))[1],
           max(e.failed_at)
    INTO oldest_at, error, failed_at
    FROM @schema@._parked_events($1, 1000) e;

    SELECT p.seq, p.attempts, p.due_at, p.error, e.due
    INTO first_seq, first_attempts, first_due, first_error, overdue_at
    FROM (SELECT x.* FROM @schema@.parked x
          WHERE x.consumer = $1 AND x.due_at IS NOT NULL
          ORDER BY x.due_at, x.seq LIMIT 1000) p,
         LATERAL (SELECT greatest(i.created_at, i.not_before) AS due FROM @schema@.event i
                  WHERE i.seq = p.seq
                  UNION ALL
                  SELECT greatest(d.created_at, d.not_before) FROM @schema@.dead d
                  WHERE d.consumer = $1 AND d.seq = p.seq
                  LIMIT 1) e
    WHERE NOT (p.delayed AND p.due_at > @schema@._clock())
    ORDER BY p.seq LIMIT 1;
END
$outbox$;

-- _waiting returns the first max_rows events past the point up to which the consumer has had
-- everything, in order of seq. waits: the event waits to be claimed: its lane is not past it, and
-- the type patterns match. The payload predicate is not evaluated.
--
-- In addition (fresh = false) it returns events further back: those of transactions that committed
-- late, and those of claims of lanes. What a claim holds waits again if the claim ran out, and is
-- in flight (held) while it is live. Parked events are not among them: see _parked_summary. The
-- work is bounded whatever the backlog, except for the events of claims, which workers hold in
-- memory.
--
-- due is when an event could first have been delivered: created_at, or not_before if that is later.
CREATE OR REPLACE FUNCTION @schema@._waiting(consumer text, max_rows int)
RETURNS TABLE (seq bigint, type text, created_at timestamptz, due timestamptz, fresh boolean,
               waits boolean, held boolean)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
    WITH c AS MATERIALIZED (
        SELECT * FROM @schema@.consumer x WHERE x.name = _waiting.consumer),
    l AS MATERIALIZED (
        SELECT x.* FROM c, LATERAL @schema@._lanes(c.name, c.lanes) x WHERE x.lane >= 0),
    p AS MATERIALIZED (
        SELECT @schema@._low(c.name, c.lanes) AS low FROM c),
    -- What to scan: the next events, and those of transactions that were late to some lane.
    s AS (
        (SELECT e.seq, e.xid, e.type, e.created_at, greatest(e.created_at, e.not_before) AS due,
                e.aggregate_type, e.aggregate_id, e.tenant, true AS fresh
         FROM @schema@.event e
         WHERE e.seq > (SELECT low FROM p)
         ORDER BY e.seq LIMIT _waiting.max_rows)
        UNION ALL
        SELECT e.*
        FROM (SELECT pg_snapshot_xip(l.seen) AS xid FROM l
              UNION
              SELECT pg_snapshot_xip(l.target) FROM l) AS late,
             LATERAL (SELECT i.seq, i.xid, i.type, i.created_at,
                             greatest(i.created_at, i.not_before), i.aggregate_type,
                             i.aggregate_id, i.tenant, false
                      FROM @schema@.event i
                      WHERE i.xid = late.xid AND i.seq <= (SELECT low FROM p)
                      ORDER BY i.seq LIMIT _waiting.max_rows) AS e)
    SELECT s.seq, s.type, s.created_at, s.due, s.fresh,
           NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos, s.xid, s.seq)
           AND s.seq > @schema@._starts_after(c.start_seen, c.start_floor)
           AND (c.type_like IS NULL OR s.type LIKE ANY (c.type_like))
           AND (c.tenant = '' OR s.tenant = c.tenant),
           false
    FROM s CROSS JOIN c
    JOIN l ON l.lane = @schema@._lane_of(c.lanes, s.seq, s.aggregate_type, s.aggregate_id)
    UNION ALL -- a lane is past what it has in a claim, but one that ran out is handed out again
    SELECT e.seq, e.type, e.created_at, greatest(e.created_at, e.not_before), false,
           k.locked_until <= @schema@._clock(), k.locked_until > @schema@._clock()
    FROM @schema@.claim k, LATERAL @schema@._claimed(_waiting.consumer, k.epoch) e
    WHERE k.consumer = _waiting.consumer AND k.lane >= 0
$outbox$;

-- _backlog counts the events of a consumer that are neither parked nor over (see _waiting): n wait
-- to be claimed, counted among at most max_rows of them, and held are in live claims of lanes. If
-- exact is true, all events were counted. Otherwise n is extrapolated: the share found among the
-- events scanned stands for the rest, up to the last seq given out. oldest_at and held_at are when
-- the oldest of either was emitted, overdue_at when the first of all could have been delivered.
CREATE OR REPLACE FUNCTION @schema@._backlog(
    consumer text, max_rows int,
    OUT n bigint, OUT exact boolean, OUT scanned bigint, OUT oldest_at timestamptz,
    OUT held bigint, OUT held_at timestamptz, OUT overdue_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    -- first and last are the ends of what was scanned, found the number of waiting events in it.
    -- rest is the number of those further back, which is not extrapolated.
    SELECT CASE WHEN b.scanned < max_rows THEN b.found + b.rest
                ELSE b.rest + ceil(b.found::numeric
                                   * greatest(b.head - b.first + 1, b.last - b.first + 1)
                                   / (b.last - b.first + 1))::bigint END,
           b.scanned < max_rows, b.scanned, b.oldest_at, b.held, b.held_at, b.overdue_at
    FROM (SELECT count(*) FILTER (WHERE w.fresh) AS scanned,
                 count(*) FILTER (WHERE w.fresh AND w.waits) AS found,
                 count(*) FILTER (WHERE w.waits AND NOT w.fresh) AS rest,
                 min(w.seq) FILTER (WHERE w.fresh) AS first,
                 max(w.seq) FILTER (WHERE w.fresh) AS last,
                 min(w.created_at) FILTER (WHERE w.waits) AS oldest_at,
                 count(*) FILTER (WHERE w.held) AS held,
                 min(w.created_at) FILTER (WHERE w.held) AS held_at,
                 min(w.due) FILTER (WHERE w.waits OR w.held) AS overdue_at,
                 coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) AS head
          FROM @schema@._waiting(consumer, max_rows) w) b
$outbox$;
