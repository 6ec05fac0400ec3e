-- Records how claim k of lane l ended, and deletes it; l is updated, to be stored. q has the
-- outcomes: see settle. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._settle_claim(
    c @schema@.consumer, INOUT l @schema@.lane, k @schema@.claim, q @schema@._request,
    now timestamptz) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    failed bigint := 0;
BEGIN
    IF k.lane = -1 THEN
        failed := @schema@._settle_parked(c, k, q.outcomes, q.release_from, now);
    ELSE
        IF q.outcomes <> '[]' THEN
            failed := @schema@._settle_outcomes(c, k, q.outcomes, now);
        END IF;
        IF q.release_from > 0 THEN
            l := @schema@._release(c, l, k, q.release_from,
                     (SELECT max(x.epoch) FROM @schema@.claim x
                      WHERE x.consumer = c.name AND x.epoch < k.epoch AND x.lane >= 0
                        AND @schema@._members(x.members, x.lane)
                            & @schema@._members(k.members, k.lane) <> 0), now);
        END IF;
        IF k.seqs IS NOT NULL THEN
            UPDATE @schema@.parked p SET claim = NULL
            WHERE p.ctid = ANY (@schema@._claimed_rows(k));
        END IF;
    END IF;
    DELETE FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch = k.epoch;
    l.delivered := l.delivered + greatest(q.tried - failed, 0);
    -- The minimum is over all lanes: an unused lane would hold its own value back.
    l.claims_from := coalesce((SELECT min(x.epoch) FROM @schema@.claim x WHERE x.consumer = c.name
                               AND x.epoch >= l.claims_from), k.epoch + 1);
END $outbox$;

-- Records how claim k of parked events ended, and returns how many were not delivered. It leaves
-- the claim's own row alone. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._settle_parked(
    c @schema@.consumer, k @schema@.claim, outcomes jsonb, release_from bigint, now timestamptz)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    failed bigint := 0;
    rows tid[] := @schema@._retried_rows(k);
    seqs bigint[];
    keys bigint[];
BEGIN
    IF outcomes <> '[]' THEN
        keys := ARRAY(SELECT p.key FROM @schema@.parked p WHERE p.ctid = ANY (rows));
        failed := @schema@._settle_outcomes(c, k, outcomes, now);
    END IF;
    IF release_from > 0 THEN
        UPDATE @schema@.parked p SET claim = NULL
        WHERE p.ctid = ANY (rows) AND p.claim = k.epoch AND p.seq >= release_from;
    END IF;
    -- Events still in the claim were delivered or skipped.
    WITH gone AS (
        DELETE FROM @schema@.parked p WHERE p.ctid = ANY (rows) AND p.claim = k.epoch
        RETURNING p.seq, p.key)
    SELECT array_agg(g.seq), coalesce(keys, array_agg(g.key)) INTO seqs, keys FROM gone g;
    DELETE FROM @schema@.dead d WHERE d.consumer = k.consumer AND d.retrying AND d.seq = ANY (seqs);
    PERFORM @schema@._promote(k.consumer, keys, now);
    RETURN failed;
END $outbox$;

-- Parks and buries events and writes receipts, with one or two statements for all outcomes of a
-- kind, and returns how many events were not delivered. A second outcome for an event is handled in
-- a separate round; it is an error if the first took the event out of a claim of parked events.
CREATE OR REPLACE FUNCTION @schema@._settle_outcomes(
    c @schema@.consumer, k @schema@.claim, outcomes jsonb, now timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    g record;
    failed bigint := 0;
BEGIN
    IF outcomes -> 0 ? 'seqs' THEN
        failed := @schema@._park_sets(c, k, outcomes, now);
        IF failed > 0 THEN RETURN failed; END IF;
        outcomes := (SELECT jsonb_agg(s.alike - '{sample,seqs,keys,delays}'::text[]
                                      || jsonb_build_object('seq', o.seq, 'delay_ms', o.delay_ms)
                                      ORDER BY o.seq)
                     FROM jsonb_array_elements(outcomes) AS s (alike),
                          unnest((s.alike ->> 'seqs')::bigint[], (s.alike ->> 'delays')::bigint[])
                              AS o (seq, delay_ms));
    END IF;
    FOR g IN
        -- Sorted by nth once, rather than for each array.
        SELECT x.act, count(*) AS n, array_agg(x.seq) AS seqs, array_agg(x.kind) AS kinds,
               array_agg(x.attempts) AS attempts, array_agg(x.delay_ms) AS delays_ms,
               array_agg(x.error) AS errors, array_agg(x.proven) AS proven,
               array_agg(x.id) AS ids, array_agg(x.receipt) AS receipts
        FROM @schema@._outcome_acts(c, k, outcomes) x
        GROUP BY x.act, x.round
        -- Buried events no longer hold up parked ones.
        ORDER BY x.act IN ('refuse', 'unknown') DESC, x.round, x.act = 'bury' DESC, min(x.nth)
    LOOP
        IF g.act = 'receive' THEN
            INSERT INTO @schema@.receipt (consumer, seq, event_id, sink_id, at)
            SELECT c.name, o.seq, o.id, o.receipt, now
            FROM unnest(g.seqs, g.ids, g.receipts) AS o (seq, id, receipt)
            ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = excluded.sink_id, at = excluded.at;
            CONTINUE;
        END IF;
        failed := failed + g.n;
        IF g.act = 'skip' THEN -- a parked event goes with the others of the claim
            INSERT INTO @schema@.ended (seq, consumer, state)
            SELECT y.seq, c.name, 'skipped' FROM @schema@.event y WHERE y.seq = ANY (g.seqs)
            ON CONFLICT ON CONSTRAINT ended_pkey DO UPDATE SET state = excluded.state;
        ELSIF g.act = 'bury' THEN
            PERFORM @schema@._bury(c.name, g.seqs, g.attempts, ARRAY(
                SELECT coalesce(o.error, 'failed')
                FROM unnest(g.errors) WITH ORDINALITY AS o (error, nth) ORDER BY o.nth));
        ELSIF g.act = 'return' THEN
            UPDATE @schema@.parked p SET claim = NULL, attempts = o.attempts
            FROM unnest(g.seqs, g.attempts) AS o (seq, attempts)
            WHERE p.ctid = ANY (@schema@._parked_rows(c.name, g.seqs)) AND p.seq = o.seq;
        ELSIF g.act = 'park' THEN
            PERFORM @schema@._park(c, g.seqs, g.kinds, g.attempts, g.delays_ms, g.errors, g.proven,
                                   now);
        ELSE
            PERFORM @schema@._refuse_outcome(
                k.epoch, g.seqs[1], CASE WHEN g.act = 'unknown' THEN g.kinds[1] END);
        END IF;
    END LOOP;
    RETURN failed;
END $outbox$;

-- Parks the events of a claim by outcomes that come as sets, and returns how many; 0: they have to
-- be settled one by one. A relay sends the outcomes of new events so, if they failed or wait behind
-- others:
--
--     [{"kind": "retry", "attempts": 1, "error": "...", "sample": -6823459,
--       "seqs": "{5,7}", "keys": "{48252,-9321}", "delays": "{1000,1000}"}, ...]
--
-- It lists their keys if the sample matches (see _knows_keys). So one statement parks them, unless
-- one of them is parked already, which is rare for a new claim.
CREATE OR REPLACE FUNCTION @schema@._park_sets(
    c @schema@.consumer, k @schema@.claim, outcomes jsonb, now timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    n bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(outcomes) o WHERE NOT o ? 'seqs') THEN
        RAISE EXCEPTION 'outcomes come as sets or one by one, not as both' USING ERRCODE = 'OB004';
    ELSIF k.lane < 0 OR c.tenant <> '' OR c.ordering = 'global'
          OR NOT @schema@._knows_keys((outcomes -> 0 ->> 'sample')::bigint) THEN
        RETURN 0;
    END IF;
    INSERT INTO @schema@.parked
    SELECT k.consumer, w.seq, w.key, w.attempts,
           CASE WHEN w.key <> 0 AND (w.nth > 1 OR @include waits_behind(k.consumer, w)@)
                THEN NULL ELSE now + w.wait END,
           w.wait, 0, false, NULL, w.error, w.failed_at, w.failed_at, w.proven
    FROM (SELECT CASE WHEN o.seq > k.from_seq AND o.seq <= k.to_seq
                           AND alike.kind IN ('retry', 'behind') THEN o.seq
                      ELSE @schema@._refuse_outcome(k.epoch, o.seq, alike.kind) END AS seq,
                 CASE WHEN c.ordering = 'key' THEN o.key ELSE 0 END AS key, alike.attempts,
                 CASE WHEN alike.kind = 'retry' THEN greatest(o.delay_ms, 1) ELSE 0 END
                     * interval '1 millisecond' AS wait,
                 CASE WHEN alike.kind = 'retry' THEN coalesce(alike.error, 'failed') END
                     AS error,
                 CASE WHEN alike.kind = 'retry' THEN now END AS failed_at,
                 coalesce(alike.proven, false) AS proven,
                 row_number() OVER (PARTITION BY o.key ORDER BY o.seq) AS nth
          FROM jsonb_to_recordset(outcomes) AS alike (
                   seqs text, keys text, delays text, kind text, attempts int, error text,
                   proven boolean),
               unnest(alike.seqs::bigint[], alike.keys::bigint[], alike.delays::bigint[])
                   AS o (seq, key, delay_ms)) w
    WHERE (SELECT y.seq FROM @schema@.parked y -- forces the index: see _parked_rows
           WHERE y.consumer = k.consumer AND y.seq BETWEEN k.from_seq + 1 AND k.to_seq
           ORDER BY y.seq LIMIT 1) IS NULL;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $outbox$;

-- What to do about each outcome. It is inlined.
CREATE OR REPLACE FUNCTION @schema@._outcome_acts(
    c @schema@.consumer, k @schema@.claim, outcomes jsonb)
RETURNS TABLE (seq bigint, kind text, delay_ms bigint, error text, id uuid, receipt text,
    proven boolean, nth bigint, round bigint, attempts int, act text) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT o.seq, o.kind, o.delay_ms, o.error, o.id, o.receipt, o.proven, o.nth, o.round,
           coalesce(o.attempts, coalesce(p.used, 0) + (o.kind IN ('retry', 'dead'))::int)
               AS attempts,
           CASE WHEN (CASE WHEN k.lane = -1 THEN p.used IS NOT NULL AND o.gone IS NOT TRUE
                           WHEN o.seq > k.from_seq AND o.seq <= k.to_seq
                           THEN c.tenant = '' -- or other tenants' events are in it
                                OR EXISTS (SELECT 1 FROM @schema@.event y
                                           WHERE y.seq = o.seq AND y.tenant = c.tenant)
                           END) IS NOT TRUE THEN 'refuse'
                WHEN o.kind = 'delivered' THEN 'receive'
                WHEN o.kind = 'dead' THEN 'bury'
                WHEN o.kind = 'skip' THEN 'skip'
                WHEN o.kind = 'behind' AND k.lane = -1 THEN 'return'
                WHEN o.kind IN ('retry', 'behind', 'delay') THEN 'park'
                ELSE 'unknown' END AS act
    FROM (SELECT r.*, row_number() OVER same AS round,
                 bool_or(r.kind NOT IN ('delivered', 'skip'))
                     OVER (same ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gone
          FROM ROWS FROM (jsonb_to_recordset(outcomes) AS (
                   seq bigint, kind text, attempts int, delay_ms bigint, error text, id uuid,
                   receipt text, proven boolean)) WITH ORDINALITY
               AS r (seq, kind, attempts, delay_ms, error, id, receipt, proven, nth)
          WINDOW same AS (PARTITION BY r.seq ORDER BY r.nth)) o
    LEFT JOIN LATERAL (
         SELECT CASE WHEN y.claim = k.epoch THEN y.attempts END AS used
         FROM @schema@.parked y
         WHERE y.consumer = c.name AND y.seq BETWEEN o.seq AND o.seq AND k.lane = -1
         ORDER BY y.seq LIMIT 1) p ON true -- forces the index: see _parked_rows
    ORDER BY act, o.round, o.nth OFFSET 0;
END;

-- Refuses an outcome: its event is not in the claim, or its kind is unknown.
CREATE OR REPLACE FUNCTION @schema@._refuse_outcome(epoch bigint, seq bigint, kind text)
RETURNS bigint LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF kind IS NULL OR kind IN ('delivered', 'skip', 'retry', 'dead', 'behind', 'delay') THEN
        RAISE EXCEPTION 'event % is not in claim %', seq, epoch USING ERRCODE = 'OB004';
    END IF;
    RAISE EXCEPTION 'unknown outcome "%" for event %', kind, seq
        USING ERRCODE = 'OB004',
              HINT = 'kind is one of delivered, skip, retry, dead, behind, delay';
END $outbox$;

-- Releases the events of claim k from release_from on, which were never tried. If no later event
-- was handed out, lane l moves back to the first of them; otherwise they are parked.
--
-- The claim `holder` remains (NULL: none), and may have an earlier event of the same keys in
-- flight. So it holds the parked events until it ends; otherwise they would overtake that event.
CREATE OR REPLACE FUNCTION @schema@._release(
    c @schema@.consumer, INOUT l @schema@.lane, k @schema@.claim, release_from bigint,
    holder bigint, now timestamptz) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    untried bigint[];
    n int;
    -- No event was handed out after the claim if the lane still stands at its end.
    last boolean := l.pos = k.to_seq AND l.target::text = k.target::text;
BEGIN
    -- With an order, the lane may also be further on, past events that were only skipped.
    IF NOT coalesce(last, false) AND c.ordering <> 'none' THEN
        last := NOT EXISTS (SELECT 1 FROM @schema@.claim x
                            WHERE x.consumer = c.name AND x.epoch > k.epoch AND x.lane >= 0
                              AND @schema@._members(x.members, x.lane)
                                  & @schema@._members(k.members, k.lane) <> 0);
    END IF;
    -- Lanes that have since joined others, or were split off, cannot move back alone.
    last := last AND l.leader IS NULL
            AND @schema@._members(l.members, l.lane) = @schema@._members(k.members, k.lane);

    IF last THEN
        l.seen := k.seen;
        l.floor := k.floor;
        l.target := k.target;
        l.next_floor := k.next_floor;
        l.window_end := k.window_end;
        l.pos := greatest(k.from_seq, release_from - 1);
        RETURN;
    END IF;

    -- Parked as "behind": they wait, and no attempt is counted.
    SELECT array_agg(w.seq ORDER BY w.seq) INTO untried
    FROM @schema@._window_events(k.seen, k.floor, k.target, greatest(k.from_seq, release_from - 1),
                                 k.to_seq, c.tenant) w
    WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
      AND @schema@._is_member(k.members, k.lane,
              @schema@._lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id));
    n := coalesce(array_length(untried, 1), 0);
    PERFORM @schema@._park(c, untried, array_fill('behind'::text, ARRAY[n]),
                           array_fill(0, ARRAY[n]), NULL, NULL, NULL, now)
    WHERE n > 0;
    -- Only the relay can apply a predicate: they are handed out one by one, and it does so then.
    UPDATE @schema@.parked p SET crashes = 1
    WHERE coalesce(c.predicate, '') <> '' AND p.consumer = c.name AND p.seq = ANY (untried);

    IF holder IS NOT NULL AND c.ordering <> 'none' AND n > 0 THEN
        UPDATE @schema@.parked p SET claim = holder
        WHERE p.ctid = ANY (@schema@._parked_rows(c.name, untried));
        UPDATE @schema@.claim x SET seqs = coalesce(x.seqs, '{}') || untried
        WHERE x.consumer = c.name AND x.epoch = holder;
    END IF;
END $outbox$;

-- Records how far a consumer has written streams. A mark never goes back. Under _lock_consumer.
--
--     [{"stream": "orders", "hi": 1748100000000, "lo": 0}, ...]
CREATE OR REPLACE FUNCTION @schema@._put_marks(consumer text, marks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.mark AS k (stream, consumer, hi, lo, at)
    SELECT m.stream, _put_marks.consumer, m.hi, m.lo, @schema@._clock()
    FROM jsonb_to_recordset(marks) AS m (stream text, hi bigint, lo bigint)
    ON CONFLICT ON CONSTRAINT mark_pkey DO UPDATE
    SET hi = excluded.hi, lo = excluded.lo, at = excluded.at
    WHERE (excluded.hi, excluded.lo) > (k.hi, k.lo);
END $outbox$;
