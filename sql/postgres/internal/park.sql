-- _park makes events wait, in the order in which their worker had them. What kind of wait it is, is
-- said as in settle: a retry waits for its delay, a delay for the event's own time, and what was
-- behind another event for nothing by itself. An event behind a parked one of its key, or behind
-- one that is parked here before it, has no time of its own.
--
-- Events of a fresh claim are usually the first ones parked from there on, and then nothing can be
-- in conflict with them. To find that out for each of them takes longer.
CREATE OR REPLACE FUNCTION @schema@._park(
    c @schema@.consumer, seqs bigint[], kinds text[], attempts int[], delays_ms bigint[],
    errors text[], proven boolean[], now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF (SELECT x.seq FROM (SELECT min(o.seq) AS first, max(o.seq) AS last
                           FROM unnest(seqs) AS o (seq)) r,
             LATERAL (SELECT y.seq FROM @schema@.parked y -- by this index: see _parked_rows
                      WHERE y.consumer = c.name AND y.seq BETWEEN r.first AND r.last
                      ORDER BY y.seq LIMIT 1) x) IS NULL THEN
        INSERT INTO @schema@.parked
        SELECT * FROM @schema@._as_parked(c, seqs, kinds, attempts, delays_ms, errors, proven, now);
        RETURN;
    END IF;
    INSERT INTO @schema@.parked AS p
    SELECT * FROM @schema@._as_parked(c, seqs, kinds, attempts, delays_ms, errors, proven, now)
    ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE SET
        attempts = excluded.attempts, due_at = excluded.due_at, wait = excluded.wait,
        crashes = excluded.crashes, delayed = excluded.delayed, claim = NULL,
        error = coalesce(excluded.error, p.error),
        failed_at = coalesce(excluded.failed_at, p.failed_at),
        failing_since = coalesce(p.failing_since, excluded.failing_since),
        proven = p.proven OR excluded.proven;
END
$outbox$;
COMMENT ON FUNCTION @schema@._park(@schema@.consumer, bigint[], text[], int[], bigint[], text[],
    boolean[], timestamptz) IS 'makes events wait';

-- _as_parked gives the rows that _park makes of its parameters. It becomes a part of the statement
-- that calls it. The columns are named as in _lanes, for the same reason.
CREATE OR REPLACE FUNCTION @schema@._as_parked(
    c @schema@.consumer, seqs bigint[], kinds text[], all_attempts int[], delays_ms bigint[],
    errors text[], all_proven boolean[], now timestamptz)
RETURNS TABLE (consumer text, seq bigint, key bigint, attempts int, due_at timestamptz,
    wait interval, crashes int, delayed boolean, claim bigint, error text,
    failed_at timestamptz, failing_since timestamptz, proven boolean)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.name, w.seq, w.key, w.attempts,
           CASE WHEN w.key <> 0 AND (w.before < w.seq OR b.there) THEN NULL
                WHEN w.kind = 'retry' THEN now + w.wait
                WHEN w.kind = 'delay'
                THEN greatest(least(w.not_before, now + interval '3653 days'), now)
                ELSE now END,
           w.wait, 0, w.kind = 'delay', NULL::bigint, w.error,
           CASE WHEN w.error IS NOT NULL THEN now END, CASE WHEN w.error IS NOT NULL THEN now END,
           coalesce(w.proven, false)
    FROM (SELECT o.seq, o.kind, o.attempts, o.proven, e.not_before, y.key,
                 CASE WHEN o.kind = 'retry' THEN greatest(o.delay_ms, 1) * interval '1 millisecond'
                      ELSE '0' END AS wait,
                 CASE WHEN o.kind = 'retry' THEN coalesce(o.error, 'failed') END AS error,
                 min(o.seq) OVER (PARTITION BY y.key ORDER BY o.nth
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM unnest($2, $3, $4, $5, $6, $7) WITH ORDINALITY
               AS o (seq, kind, attempts, delay_ms, error, proven, nth)
          LEFT JOIN LATERAL (
               SELECT x.aggregate_type, x.aggregate_id, x.not_before
               FROM @schema@.event x WHERE x.seq = o.seq
               UNION ALL
               SELECT d.aggregate_type, d.aggregate_id, d.not_before
               FROM @schema@.dead d WHERE d.consumer = c.name AND d.seq = o.seq
               LIMIT 1) e ON true -- one that was trimmed was a dead letter, which is kept whole
          CROSS JOIN LATERAL (
               SELECT @schema@._key(c.ordering, e.aggregate_type, e.aggregate_id) AS key) y) w
    LEFT JOIN LATERAL ( -- by this index: see _parked_rows
         SELECT true AS there FROM @schema@.parked x
         WHERE x.consumer = c.name AND x.key BETWEEN w.key AND w.key AND x.seq < w.seq
           AND w.key <> 0 AND (w.before < w.seq) IS NOT TRUE
         ORDER BY x.key, x.seq LIMIT 1) b ON true;
END;
COMMENT ON FUNCTION @schema@._as_parked(@schema@.consumer, bigint[], text[], int[], bigint[],
    text[], boolean[], timestamptz) IS 'the rows of events that begin to wait';
