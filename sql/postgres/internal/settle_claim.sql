-- _settle_claim: records how claim k of lane l ended, and forgets it; gives l as it is then, to be
-- kept with put_lane. For the meaning of outcomes and release_from see settle. Under lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._settle_claim(c @schema@.consumer, INOUT l @schema@.lane,
    k @schema@.claim,
                                                 tried bigint, outcomes jsonb, release_from bigint,
                                                     now timestamptz)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    failed bigint := 0;
    keys bigint[];
    seqs bigint[];
BEGIN
    IF k.lane = -1 AND outcomes <> '[]' THEN
        SELECT array_agg(DISTINCT p.key) INTO keys FROM @schema@.parked p
        WHERE p.ctid = ANY (@schema@._claimed_rows(k));
    END IF;
    IF outcomes <> '[]' THEN
        failed := @schema@._settle_outcomes(c, k, outcomes, now);
    END IF;
    IF release_from > 0 AND k.lane = -1 THEN
        UPDATE @schema@.parked p SET claim = NULL
        WHERE p.ctid = ANY (@schema@._claimed_rows(k))
          AND p.seq >= release_from;
    ELSIF release_from > 0 THEN
        l := @schema@._release(c, l, k, release_from, now);
    END IF;
    IF k.lane = -1 THEN
        -- What is still in the claim was delivered, or skipped.
        WITH gone AS (
            DELETE FROM @schema@.parked p WHERE p.ctid = ANY (@schema@._claimed_rows(k))
            RETURNING p.seq, p.key)
        SELECT array_agg(g.seq), coalesce(keys, array_agg(DISTINCT g.key)) INTO seqs, keys
        FROM gone g;
        DELETE FROM @schema@.dead d WHERE d.consumer = c.name AND d.retrying AND d.seq = ANY (seqs);
        PERFORM @schema@._promote(c.name, keys, now);
    END IF;
    DELETE FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch = k.epoch;
    l.delivered := l.delivered + greatest(tried - failed, 0);
    -- Of all lanes: one that is never used would hold it back, and every look would step over the
    -- dead claims of the others.
    l.claims_from := coalesce((SELECT min(x.epoch) FROM @schema@.claim x WHERE x.consumer = c.name
                               AND x.epoch >= l.claims_from), k.epoch + 1);
END
$outbox$;
COMMENT ON FUNCTION @schema@._settle_claim(@schema@.consumer, @schema@.lane, @schema@.claim,
    bigint, jsonb, bigint,
    timestamptz) IS 'records how a claim ended';
