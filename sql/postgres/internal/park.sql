-- Parked events and dead letters.

-- The row locations (ctid) of parked events, for statements that change them. The planner does not
-- choose the index: the table is empty most of the time, so all indexes look equally cheap, and one
-- on the consumer alone would read all entries for each event.
CREATE OR REPLACE FUNCTION @schema@._parked_rows(consumer text, seqs bigint[]) RETURNS tid[]
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN ARRAY(
        SELECT p.at FROM unnest(seqs) AS o (seq), LATERAL (
             SELECT x.ctid AS at FROM @schema@.parked x
             WHERE x.consumer = $1 AND x.seq BETWEEN o.seq AND o.seq ORDER BY x.seq LIMIT 1) p);
END $outbox$;

-- The row locations of the parked events that claim k still holds.
CREATE OR REPLACE FUNCTION @schema@._claimed_rows(k @schema@.claim) RETURNS tid[]
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN ARRAY(
        SELECT p.at FROM unnest(k.seqs) AS o (seq), LATERAL (
             SELECT x.ctid AS at, x.claim FROM @schema@.parked x
             WHERE x.consumer = k.consumer AND x.seq BETWEEN o.seq AND o.seq
             ORDER BY x.seq LIMIT 1) p
        WHERE p.claim = k.epoch);
END $outbox$;

-- The time from which to search for parked events, lane.due_from, before any is given a time. If
-- now is before it, the clock was set back, and due_from is forgotten. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._due_since(consumer text, now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    l @schema@.lane;
BEGIN
    SELECT * INTO l FROM @schema@.lane x WHERE x.consumer = _due_since.consumer AND x.lane = -1
    ORDER BY x.version DESC LIMIT 1;
    IF l.due_from > now THEN
        l.due_from := NULL;
        PERFORM @schema@._put_lane(l);
    END IF;
    RETURN coalesce(l.due_from, '-infinity');
END $outbox$;

-- The earliest due time of a parked event, claimed or not; NULL if none is.
CREATE OR REPLACE FUNCTION @schema@._first_due(consumer text, since timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $outbox$
BEGIN
    RETURN @include first_due($1, since)@;
END $outbox$;

-- Parks events, in the order in which their worker had them. The kinds are those of settle. A retry
-- waits for its delay, a delay for the event's not_before. An event behind a parked one of its key,
-- or one parked earlier in this call, has no due time. Usually no event is parked from the first
-- event of a fresh claim on, so no row can conflict; checking each would take longer.
CREATE OR REPLACE FUNCTION @schema@._park(
    c @schema@.consumer, seqs bigint[], kinds text[], attempts int[], delays_ms bigint[],
    errors text[], proven boolean[], now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF (SELECT x.seq FROM (SELECT min(o.seq) AS first, max(o.seq) AS last
                           FROM unnest(seqs) AS o (seq)) r,
             LATERAL (SELECT y.seq FROM @schema@.parked y -- forces the index: see _parked_rows
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
END $outbox$;

-- The rows that _park inserts. It is inlined. The columns are listed as in _lanes.
CREATE OR REPLACE FUNCTION @schema@._as_parked(
    c @schema@.consumer, seqs bigint[], kinds text[], all_attempts int[], delays_ms bigint[],
    errors text[], all_proven boolean[], now timestamptz)
RETURNS TABLE (consumer text, seq bigint, key bigint, attempts int, due_at timestamptz,
    wait interval, crashes int, delayed boolean, claim bigint, error text,
    failed_at timestamptz, failing_since timestamptz, proven boolean) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.name, w.seq, w.key, w.attempts,
           CASE WHEN w.key <> 0 AND (w.before < w.seq OR @include waits_behind(c.name, w)@)
                THEN NULL
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
               LIMIT 1) e ON true -- a trimmed event is a dead letter, which holds a full copy
          CROSS JOIN LATERAL (
               SELECT @schema@._key(c.ordering, e.aggregate_type, e.aggregate_id) AS key) y) w;
END;

-- Makes the first parked event of each key due, if it waited behind one that is no longer parked.
-- If it failed while it waited, it still waits for its own time.
CREATE OR REPLACE FUNCTION @schema@._promote(consumer text, key_list bigint[], now timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    UPDATE @schema@.parked p SET due_at = greatest(now, p.failed_at + p.wait)
    WHERE p.claim IS NULL AND p.due_at IS NULL
      AND p.ctid = ANY (ARRAY(
          SELECT f.at
          FROM unnest(key_list) AS k (key), LATERAL ( -- forces the index: see _parked_rows
               SELECT x.ctid AS at FROM @schema@.parked x
               WHERE x.consumer = _promote.consumer AND x.key BETWEEN k.key AND k.key
               ORDER BY x.key, x.seq LIMIT 1) f
          WHERE k.key <> 0));
END $outbox$;

-- Makes dead letters of events, with full copies, and deletes their rows in parked.
CREATE OR REPLACE FUNCTION @schema@._bury(consumer text, seqs bigint[], attempts int[],
                                          errors text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.dead AS d (consumer, seq, id, type, aggregate_type, aggregate_id, version,
                                    payload, headers, tenant, not_before, created_at,
                                    idempotency_key, attempts, error, dead_at)
    SELECT $1, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version,
           e.payload, e.headers, e.tenant, e.not_before, e.created_at,
           e.idempotency_key, o.attempts, o.error, @schema@._clock()
    FROM unnest($2, $3, $4) AS o (seq, attempts, error)
    JOIN @schema@.event e ON e.seq = o.seq
    ON CONFLICT ON CONSTRAINT dead_pkey DO UPDATE SET
        attempts = excluded.attempts, error = excluded.error, dead_at = excluded.dead_at,
        retrying = false;
    -- A letter sent back after its event was trimmed has only its own row.
    UPDATE @schema@.dead d
    SET attempts = o.attempts, error = o.error, dead_at = @schema@._clock(), retrying = false
    FROM unnest($2, $3, $4) AS o (seq, attempts, error)
    WHERE d.consumer = $1 AND d.seq = ANY ($2) AND d.seq = o.seq AND d.retrying;
    DELETE FROM @schema@.parked p WHERE p.ctid = ANY (@schema@._parked_rows($1, $2));
END $outbox$;
