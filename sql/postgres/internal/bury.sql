-- _bury makes dead letters of events, which are kept whole, and takes them out of the parked ones.
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._bury(text, bigint[], int[], text[]) IS 'makes dead letters';
