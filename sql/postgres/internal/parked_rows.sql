-- _parked_rows gives where the rows of parked events are, for statements that change them. Which
-- index they would be found by is not left to the planner: the table is empty at most times, so
-- that every index looks alike to it, and one that it takes for all of a consumer's events would be
-- read whole for each of them.
CREATE OR REPLACE FUNCTION @schema@._parked_rows(consumer text, seqs bigint[]) RETURNS tid[]
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN ARRAY(
        SELECT p.at
        FROM unnest(seqs) AS o (seq), LATERAL (
             SELECT x.ctid AS at FROM @schema@.parked x
             WHERE x.consumer = $1 AND x.seq BETWEEN o.seq AND o.seq
             ORDER BY x.seq LIMIT 1) p);
END
$outbox$;
COMMENT ON FUNCTION @schema@._parked_rows(text, bigint[]) IS 'where the rows of parked events are';

-- _claimed_rows gives where the parked events are that claim k still holds.
CREATE OR REPLACE FUNCTION @schema@._claimed_rows(k @schema@.claim) RETURNS tid[]
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN ARRAY(
        SELECT p.at
        FROM unnest(k.seqs) AS o (seq), LATERAL (
             SELECT x.ctid AS at, x.claim FROM @schema@.parked x
             WHERE x.consumer = k.consumer AND x.seq BETWEEN o.seq AND o.seq
             ORDER BY x.seq LIMIT 1) p
        WHERE p.claim = k.epoch);
END
$outbox$;
COMMENT ON FUNCTION @schema@._claimed_rows(@schema@.claim) IS
    'where the parked events of a claim are';
