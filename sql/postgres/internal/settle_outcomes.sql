-- _settle_outcomes parks, buries and writes receipts: a statement or two for all the outcomes that
-- ask for the same. Returns how many of the events were not delivered.
--
-- An outcome that comes second for its event has a round of its own. Of a claim of parked events it
-- is refused if the first one took the event out of the claim.
--
-- Usually new events have failed, each has one outcome, and none of them is parked. Then they are
-- parked by one statement, which has nothing to sort.
CREATE OR REPLACE FUNCTION @schema@._settle_outcomes(
    c @schema@.consumer, k @schema@.claim, outcomes jsonb, now timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    g record;
    failed bigint := 0;
BEGIN
    IF k.lane >= 0 AND c.tenant = '' THEN
        INSERT INTO @schema@.parked
        SELECT p.*
        FROM (SELECT array_agg(o.seq) AS seqs, array_agg(o.kind) AS kinds,
                     array_agg(coalesce(o.attempts, (o.kind = 'retry')::int)) AS attempts,
                     array_agg(o.delay_ms) AS delays_ms, array_agg(o.error) AS errors,
                     array_agg(o.proven) AS proven, min(o.seq) AS first, max(o.seq) AS last
              FROM (SELECT r.*, lag(r.seq, 1, k.from_seq) OVER () AS before
                    FROM jsonb_to_recordset(outcomes) AS r (
                             seq bigint, kind text, attempts int, delay_ms bigint, error text,
                             proven boolean)) o
              HAVING bool_and(o.kind IN ('retry', 'behind', 'delay') AND o.seq > o.before
                              AND o.seq <= k.to_seq)) n,
             LATERAL @schema@._as_parked(c, n.seqs, n.kinds, n.attempts, n.delays_ms, n.errors,
                                         n.proven, now) p
        WHERE (SELECT y.seq FROM @schema@.parked y -- by this index: see _parked_rows
               WHERE y.consumer = c.name AND y.seq BETWEEN n.first AND n.last
               ORDER BY y.seq LIMIT 1) IS NULL;
        GET DIAGNOSTICS failed = ROW_COUNT;
        IF failed > 0 THEN
            RETURN failed;
        END IF;
    END IF;
    FOR g IN
        -- They come sorted by nth, so that it is done once and not for each array.
        SELECT x.act, count(*) AS n, array_agg(x.seq) AS seqs, array_agg(x.kind) AS kinds,
               array_agg(x.attempts) AS attempts, array_agg(x.delay_ms) AS delays_ms,
               array_agg(x.error) AS errors, array_agg(x.proven) AS proven,
               array_agg(x.id) AS ids, array_agg(x.receipt) AS receipts
        FROM (SELECT o.seq, o.kind, o.delay_ms, o.error, o.id, o.receipt, o.proven, o.nth, o.round,
                     coalesce(o.attempts, coalesce(p.used, 0) + (o.kind IN ('retry', 'dead'))::int)
                         AS attempts,
                     CASE WHEN (CASE WHEN k.lane = -1 THEN p.used IS NOT NULL AND o.gone IS NOT TRUE
                                     WHEN o.seq > k.from_seq AND o.seq <= k.to_seq
                                     THEN c.tenant = '' -- or the range has others' events in it
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
                             seq bigint, kind text, attempts int, delay_ms bigint, error text,
                                 id uuid,
                             receipt text, proven boolean)) WITH ORDINALITY
                         AS r (seq, kind, attempts, delay_ms, error, id, receipt, proven, nth)
                    WINDOW same AS (PARTITION BY r.seq ORDER BY r.nth)) o
              LEFT JOIN LATERAL (
                   SELECT CASE WHEN y.claim = k.epoch THEN y.attempts - y.careful::int END AS used
                   FROM @schema@.parked y
                   WHERE y.consumer = c.name AND y.seq BETWEEN o.seq AND o.seq AND k.lane = -1
                   ORDER BY y.seq LIMIT 1) p ON true -- by this index: see _parked_rows
              ORDER BY act, o.round, o.nth OFFSET 0) x
        GROUP BY x.act, x.round
        -- Events that are buried are out of the way of those that are parked.
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
        IF g.act = 'skip' THEN -- a parked one goes with the claim's others
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
        ELSIF g.act = 'refuse' THEN
            RAISE EXCEPTION 'event % is not in claim %', g.seqs[1], k.epoch USING ERRCODE = 'OB004';
        ELSE
            RAISE EXCEPTION 'unknown outcome "%" for event %', g.kinds[1], g.seqs[1]
                USING ERRCODE = 'OB004',
                      HINT = 'kind is one of delivered, skip, retry, dead, behind, delay';
        END IF;
    END LOOP;
    RETURN failed;
END
$outbox$;
COMMENT ON FUNCTION @schema@._settle_outcomes(@schema@.consumer, @schema@.claim, jsonb, timestamptz)
    IS 'parks, buries and writes receipts';
