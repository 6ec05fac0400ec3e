-- The progress of consumers, and which events they still need.

-- The seq up to which every one of a consumer's `lanes` lanes is past all events but late ones.
-- NULL: rows of lane are missing. Past next_floor, a seq does not determine whether a lane passed
-- it.
CREATE OR REPLACE FUNCTION @schema@._low(consumer text, lanes int) RETURNS bigint
LANGUAGE sql STABLE AS $outbox$
    SELECT min(CASE WHEN l.target IS NULL THEN l.floor
                    ELSE least(greatest(l.floor, l.pos), l.next_floor) END)
    FROM @schema@._lanes(_low.consumer, _low.lanes) l WHERE l.lane >= 0
$outbox$;

-- Returns for each consumer the seq up to which it no longer needs events, and the reason (pin):
-- its position, a claim, a parked event, or a lost place.
CREATE OR REPLACE FUNCTION @schema@._floors()
RETURNS TABLE (consumer text, paused boolean, floor bigint, pin text)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    -- The lowest candidate counts. Of equal ones, the pin with the lowest rank is named.
    SELECT DISTINCT ON (f.consumer) f.consumer, f.paused, f.floor, f.pin
    FROM (SELECT c.name AS consumer, c.paused,
                 CASE WHEN l.target IS NULL THEN l.floor ELSE greatest(l.floor, l.pos) END AS floor,
                 'position' AS pin, 2 AS rank
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0
          UNION ALL
          -- The position is past claimed events, but a claim may be taken over and read again.
          SELECT c.name, c.paused, greatest(k.floor, k.from_seq), 'claim', 1
          FROM @schema@.consumer c JOIN @schema@.claim k ON k.consumer = c.name AND k.lane >= 0
          UNION ALL
          -- Rows of lane are missing: the position is unknown, so the consumer may need all events.
          SELECT c.name, c.paused, 0, 'lost place', 0 FROM @schema@.consumer c
          WHERE (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)) <= c.lanes
          UNION ALL
          -- A dead letter that was sent back is parked as well, but has a copy of its event. The
          -- first other parked event is found in index order; an aggregate would read all of them.
          SELECT c.name, c.paused, p.seq - 1, 'parked', 0
          FROM @schema@.consumer c,
               LATERAL (SELECT x.seq FROM @schema@.parked x
                        WHERE x.consumer = c.name
                          AND NOT EXISTS (SELECT 1 FROM @schema@.dead d
                                          WHERE d.consumer = x.consumer AND d.seq = x.seq)
                        ORDER BY x.seq LIMIT 1) p) f
    ORDER BY f.consumer, f.floor, f.rank
$outbox$;

-- Whether any consumer may still need an event: a lane that has not handed it out, a claim that may
-- be handed out again, or a consumer that has the event parked. A dead letter holds a copy of its
-- event, so a letter that was sent back does not need the event itself.
CREATE OR REPLACE FUNCTION @schema@._needed(xid xid8, seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT EXISTS (SELECT 1 FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
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

-- An xid. Every lane of every consumer has seen the events of earlier transactions, and no claim
-- holds one. So no consumer needs such an event below the floor, and _needed is not called for it.
-- Claims count because a claim of late events holds some that are below its own floor.
CREATE OR REPLACE FUNCTION @schema@._surely_done() RETURNS xid8 LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce(min(pg_snapshot_xmin(s.seen)::text::bigint), 0)::text::xid8
    FROM (SELECT l.seen
          FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l WHERE l.lane >= 0
          UNION ALL
          SELECT k.seen FROM @schema@.claim k WHERE k.lane >= 0) s
$outbox$;

-- The position of the lane that is furthest behind, for a consumer with `lanes` lanes, and how many
-- events were delivered to the consumer. Lane -1, of the parked events, has no position. It is not
-- inlined: the planner would expect 1,000 lanes of each, and use JIT.
CREATE OR REPLACE FUNCTION @schema@._progress(
    consumer text, lanes int, OUT place bigint, OUT delivered bigint)
LANGUAGE sql STABLE SET jit = off AS $outbox$
    SELECT min(CASE WHEN x.lane < 0 THEN NULL
                    WHEN x.target IS NULL THEN x.floor
                    ELSE greatest(x.floor, x.pos) END),
           sum(x.delivered)::bigint
    FROM @schema@._lanes(_progress.consumer, _progress.lanes) x
$outbox$;

-- The first max_rows parked events of a consumer, claimed or not, in order of seq. That is the
-- order of the primary key, so no other row is read. This function and _parked_summary do not leave
-- the index to the planner: see _parked_rows.
CREATE OR REPLACE FUNCTION @schema@._parked_events(consumer text, max_rows int)
RETURNS TABLE (seq bigint, type text, created_at timestamptz, error text, failed_at timestamptz)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $outbox$
    SELECT p.seq, e.type, e.created_at, p.error, p.failed_at
    FROM (SELECT x.seq, x.error, x.failed_at FROM @schema@.parked x
          WHERE x.consumer = _parked_events.consumer
          ORDER BY x.seq LIMIT _parked_events.max_rows) p,
         LATERAL @include parked_event(_parked_events.consumer, p)@ e
$outbox$;

-- How many events of a consumer are parked, claimed or not, and which has waited longest, at a cost
-- that does not grow with their number. n is exact below 10,000, and extrapolated above. Of the
-- first 1,000, oldest_at is when the oldest was emitted, and error that of the last failure. Of the
-- 1,000 that are due first, first_seq is the oldest that waits for more than its not_before, and
-- overdue_at when it could first have been delivered.
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
    SELECT count(*), min(s.seq), max(s.seq) INTO n, low, high
    FROM (SELECT p.seq FROM @schema@.parked p
          WHERE p.consumer = $1 ORDER BY p.seq LIMIT 10000) s;
    exact := n < 10000;
    IF n = 0 THEN RETURN; END IF; -- as usual
    IF NOT exact THEN
        SELECT p.seq INTO last FROM @schema@.parked p
        WHERE p.consumer = $1 ORDER BY p.seq DESC LIMIT 1;
        n := ceil(n::numeric * (last - low + 1) / (high - low + 1));
    END IF;

    SELECT min(e.created_at), (array_agg(e.error ORDER BY e.failed_at DESC NULLS LAST))[1],
           max(e.failed_at)
    INTO oldest_at, error, failed_at
    FROM @schema@._parked_events($1, 1000) e;

    SELECT p.seq, p.attempts, p.due_at, p.error, greatest(e.created_at, e.not_before)
    INTO first_seq, first_attempts, first_due, first_error, overdue_at
    FROM (SELECT x.* FROM @schema@.parked x
          WHERE x.consumer = $1 AND x.due_at IS NOT NULL ORDER BY x.due_at, x.seq LIMIT 1000) p,
         LATERAL @include parked_event($1, p)@ e
    WHERE NOT (p.delayed AND p.due_at > @schema@._clock()) ORDER BY p.seq LIMIT 1;
END $outbox$;

-- The first max_rows events past the point up to which everything was handed out, in order of seq.
-- waits: the event waits to be claimed. The payload predicate is not evaluated. Earlier events
-- (fresh = false) are added: late ones, and those in claims of lanes, which are in flight (held)
-- while the claim is live, and wait again after it. Parked events are not included. The work is
-- bounded, except for claimed events, which workers hold in memory.
--
-- due is when an event could first have been delivered.
CREATE OR REPLACE FUNCTION @schema@._waiting(consumer text, max_rows int)
RETURNS TABLE (seq bigint, type text, created_at timestamptz, due timestamptz, fresh boolean,
               waits boolean, held boolean) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $outbox$
    WITH c AS MATERIALIZED (
        SELECT * FROM @schema@.consumer x WHERE x.name = _waiting.consumer),
    l AS MATERIALIZED (
        SELECT x.* FROM c, LATERAL @schema@._lanes(c.name, c.lanes) x WHERE x.lane >= 0),
    p AS MATERIALIZED (
        SELECT @schema@._low(c.name, c.lanes) AS low FROM c),
    -- The events to scan: the next ones, and those of transactions that were late for some lane.
    s AS (
        (SELECT e.seq, e.xid, e.type, e.created_at, greatest(e.created_at, e.not_before) AS due,
                e.aggregate_type, e.aggregate_id, e.tenant, true AS fresh
         FROM @schema@.event e WHERE e.seq > (SELECT low FROM p)
         ORDER BY e.seq LIMIT _waiting.max_rows)
        UNION ALL
        SELECT e.*
        FROM (SELECT pg_snapshot_xip(l.seen) AS xid FROM l
              UNION
              SELECT pg_snapshot_xip(l.target) FROM l) AS late,
             LATERAL (SELECT i.seq, i.xid, i.type, i.created_at,
                             greatest(i.created_at, i.not_before), i.aggregate_type,
                             i.aggregate_id, i.tenant, false
                      FROM @schema@.event i WHERE i.xid = late.xid AND i.seq <= (SELECT low FROM p)
                      ORDER BY i.seq LIMIT _waiting.max_rows) AS e)
    SELECT s.seq, s.type, s.created_at, s.due, s.fresh,
           NOT @schema@._handed_out(l.seen, l.floor, l.target, l.pos, s.xid, s.seq)
           AND s.seq > @schema@._starts_after(c.start_seen, c.start_floor)
           AND (c.type_like IS NULL OR s.type LIKE ANY (c.type_like))
           AND (c.tenant = '' OR s.tenant = c.tenant),
           false
    FROM s CROSS JOIN c
    JOIN l ON l.lane = @schema@._lane_of(c.lanes, s.seq, s.aggregate_type, s.aggregate_id)
    UNION ALL -- a lane is past its claimed events, but an expired claim is handed out again
    SELECT e.seq, e.type, e.created_at, greatest(e.created_at, e.not_before), false,
           k.locked_until <= @schema@._clock(), k.locked_until > @schema@._clock()
    FROM @schema@.claim k, LATERAL @schema@._claimed(_waiting.consumer, k.epoch) e
    WHERE k.consumer = _waiting.consumer AND k.lane >= 0
$outbox$;

-- Counts the events of a consumer that are neither parked nor finished (see _waiting): n wait to be
-- claimed, held are in live claims of lanes. At most max_rows are scanned; unless those were all
-- (exact), n is extrapolated up to the last seq assigned. oldest_at and held_at are when the oldest
-- of each was emitted, overdue_at when the first could have been delivered.
CREATE OR REPLACE FUNCTION @schema@._backlog(
    consumer text, max_rows int,
    OUT n bigint, OUT exact boolean, OUT scanned bigint, OUT oldest_at timestamptz,
    OUT held bigint, OUT held_at timestamptz, OUT overdue_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    -- first and last are the ends of the scanned range, and found is the number of waiting events
    -- in it. rest is the number of earlier waiting events, which is not extrapolated.
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
