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
COMMENT ON FUNCTION @schema@._parked_events(text, int) IS 'the first parked events of a consumer';

-- _parked_summary says how many events of a consumer are parked, in or out of a claim, and which
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
COMMENT ON FUNCTION @schema@._parked_summary(text) IS
    'how many events are parked, and which has waited longest';
