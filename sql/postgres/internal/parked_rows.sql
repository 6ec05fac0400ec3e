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

-- _parked_of gives the parked events that a claim holds.
CREATE OR REPLACE FUNCTION @schema@._parked_of(consumer text, epoch bigint) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN ARRAY(
        SELECT x.seq FROM @schema@.parked x
        WHERE x.consumer = $1 AND x.claim BETWEEN $2 AND $2
        ORDER BY x.claim);
END
$outbox$;
COMMENT ON FUNCTION @schema@._parked_of(text, bigint) IS 'the parked events of a claim';
