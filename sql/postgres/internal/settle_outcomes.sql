-- _settle_outcomes: parks, buries and writes receipts; returns how many of the events were not delivered.
CREATE OR REPLACE FUNCTION @schema@._settle_outcomes(c @schema@.consumer, k @schema@.claim, outcomes jsonb, now timestamptz)
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    o record;
    e record;
    used int;
    mine boolean;
    failed bigint := 0;
BEGIN
    FOR o IN SELECT * FROM jsonb_to_recordset(outcomes)
             AS x (seq bigint, kind text, attempts int, delay_ms bigint, error text, id uuid, receipt text,
                   proven boolean) LOOP
        used := NULL;
        mine := k.lane >= 0 AND o.seq > k.from_seq AND o.seq <= k.to_seq;
        IF k.lane = -1 OR o.kind <> 'delivered' THEN
            SELECT p.attempts - p.careful::int INTO used FROM @schema@.parked p WHERE p.consumer = c.name AND p.seq = o.seq
               AND p.claim = k.epoch;
            mine := CASE WHEN k.lane = -1 THEN FOUND ELSE mine AND NOT FOUND END;
        END IF;
        IF mine AND k.lane >= 0 AND c.tenant <> '' THEN -- the range has others' events in it
            mine := EXISTS (SELECT 1 FROM @schema@.event x WHERE x.seq = o.seq AND x.tenant = c.tenant);
        END IF;
        IF mine IS NOT TRUE THEN
            RAISE EXCEPTION 'event % is not in claim %', o.seq, k.epoch USING ERRCODE = 'OB004';
        END IF;
        IF o.kind = 'delivered' THEN
            INSERT INTO @schema@.receipt (consumer, seq, event_id, sink_id, at) VALUES (c.name, o.seq, o.id, o.receipt, now)
            ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = excluded.sink_id, at = excluded.at;
            CONTINUE;
        END IF;
        failed := failed + 1;
        o.attempts := coalesce(o.attempts, coalesce(used, 0) + (o.kind IN ('retry', 'dead'))::int);
        IF o.kind = 'skip' THEN -- a parked one goes with the claim's others
            INSERT INTO @schema@.ended (seq, consumer, state)
            SELECT y.seq, c.name, 'skipped' FROM @schema@.event y WHERE y.seq = o.seq
            ON CONFLICT ON CONSTRAINT ended_pkey DO UPDATE SET state = excluded.state;
        ELSIF o.kind = 'dead' THEN
            PERFORM @schema@._bury(c.name, o.seq, o.attempts, coalesce(o.error, 'failed'));
        ELSIF o.kind = 'behind' AND k.lane = -1 THEN
            UPDATE @schema@.parked p SET claim = NULL, attempts = o.attempts WHERE p.consumer = c.name AND p.seq = o.seq;
        ELSIF o.kind IN ('retry', 'behind', 'delay') THEN
            SELECT x.aggregate_type, x.aggregate_id, x.not_before INTO e FROM @schema@.event x WHERE x.seq = o.seq;
            IF NOT FOUND THEN -- trimmed: it was a dead letter, which is kept whole
                SELECT x.aggregate_type, x.aggregate_id, x.not_before INTO e FROM @schema@.dead x
                WHERE x.consumer = c.name AND x.seq = o.seq;
            END IF;
            PERFORM @schema@._park(c.name, o.seq, @schema@._key(c.ordering, e.aggregate_type, e.aggregate_id),
                o.attempts,
                CASE o.kind WHEN 'retry' THEN now + greatest(o.delay_ms, 1) * interval '1 millisecond'
                            WHEN 'delay' THEN least(coalesce(e.not_before, now), now + interval '3653 days') ELSE now END,
                CASE o.kind WHEN 'retry' THEN greatest(o.delay_ms, 1) * interval '1 millisecond' ELSE '0' END,
                false, o.kind = 'delay', CASE o.kind WHEN 'retry' THEN coalesce(o.error, 'failed') END,
                coalesce(o.proven, false));
        ELSE
            RAISE EXCEPTION 'unknown outcome "%" for event %', o.kind, o.seq
                USING ERRCODE = 'OB004', HINT = 'kind is one of delivered, skip, retry, dead, behind, delay';
        END IF;
    END LOOP;
    RETURN failed;
END
$outbox$;
COMMENT ON FUNCTION @schema@._settle_outcomes(@schema@.consumer, @schema@.claim, jsonb, timestamptz) IS
    'parks, buries and writes receipts';
