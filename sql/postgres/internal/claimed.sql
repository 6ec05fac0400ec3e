-- _claimed returns the events of a claim, each with what the worker has to know of earlier
-- attempts. A claim of a lane is a range of seq in a window, and its events are read again as they
-- were claimed. They have no attempts, because whatever has failed is parked. A claim of lane -1 is
-- the parked events that carry its epoch.
--
-- attempts does not count the attempt that is about to be made. failing_ms says for how long the
-- event has been failing. proven says that the event itself was proven to be at fault.
--
-- It is plpgsql for the plans, which a function in SQL that cannot be inlined would make each time.
CREATE OR REPLACE FUNCTION @schema@._claimed(consumer text, epoch bigint)
RETURNS TABLE (
    seq bigint, id uuid, type text, aggregate_type text, aggregate_id text, version bigint,
    payload json, headers json, tenant text, created_at timestamptz, not_before timestamptz,
    attempts int, careful boolean, failing_ms bigint, proven boolean, idempotency_key text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
BEGIN
    -- The claim of a lane.
    RETURN QUERY
    SELECT e.seq, e.id::uuid, e.type::text, e.aggregate_type::text, e.aggregate_id::text, e.version,
           e.payload::json, e.headers::json, e.tenant::text, e.created_at::timestamptz,
           e.not_before::timestamptz, 0, false, 0::bigint, false, e.idempotency_key::text
    FROM @schema@.claim k, @schema@.consumer c,
         LATERAL @schema@._window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq,
                                         c.tenant) e
    WHERE k.consumer = $1 AND k.epoch = $2 AND k.lane >= 0 AND c.name = $1
      AND (c.type_like IS NULL OR e.type LIKE ANY (c.type_like))
      AND @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id));
    IF FOUND THEN
        RETURN;
    END IF;

    -- The claim of parked events.
    RETURN QUERY
    SELECT p.seq, e.id::uuid, e.type::text, e.aggregate_type::text, e.aggregate_id::text, e.version,
           e.payload::json, e.headers::json, e.tenant::text, e.created_at::timestamptz,
           e.not_before::timestamptz, p.attempts, p.crashes > 0,
           greatest(floor(extract(epoch FROM @schema@._clock() - p.failing_since) * 1000)::bigint,
                    0),
           p.proven, e.idempotency_key::text
    FROM @schema@.claim k,
         unnest(k.seqs) AS o (seq),
         LATERAL (SELECT x.* FROM @schema@.parked x -- by this index: see _parked_rows
                  WHERE x.consumer = k.consumer AND x.seq BETWEEN o.seq AND o.seq
                  ORDER BY x.seq LIMIT 1) p,
         -- An event that was trimmed while parked is a dead letter sent back, which is kept whole.
         LATERAL (SELECT i.seq, i.id, i.type, i.aggregate_type, i.aggregate_id, i.version,
                         i.payload, i.headers, i.tenant, i.created_at, i.not_before,
                         i.idempotency_key
                  FROM @schema@.event i
                  WHERE i.seq = p.seq
                  UNION ALL
                  SELECT d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.version,
                         d.payload, d.headers, d.tenant, d.created_at, d.not_before,
                         d.idempotency_key
                  FROM @schema@.dead d
                  WHERE d.consumer = $1 AND d.seq = p.seq
                  LIMIT 1) e
    WHERE k.consumer = $1 AND k.epoch = $2 AND p.claim = $2;
END
$outbox$;
COMMENT ON FUNCTION @schema@._claimed(text, bigint) IS 'the events of a claim';
