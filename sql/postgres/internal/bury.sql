-- _bury: makes a dead letter of an event, which is kept whole, and takes it out of the parked ones.
CREATE OR REPLACE FUNCTION @schema@._bury(consumer text, seq bigint, attempts int, error text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.dead AS d (consumer, seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant,
                                    not_before, created_at, idempotency_key, attempts, error, dead_at)
    SELECT $1, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant,
           e.not_before, e.created_at, e.idempotency_key, $3, $4, @schema@._clock()
    FROM @schema@.event e WHERE e.seq = $2
    ON CONFLICT ON CONSTRAINT dead_pkey DO UPDATE SET attempts = excluded.attempts, error = excluded.error,
        dead_at = excluded.dead_at, retrying = false;
    -- A letter sent back after its event was trimmed has only its own row.
    UPDATE @schema@.dead d SET attempts = $3, error = $4, dead_at = @schema@._clock(), retrying = false
    WHERE d.consumer = $1 AND d.seq = $2 AND d.retrying;
    DELETE FROM @schema@.parked p WHERE p.consumer = $1 AND p.seq = $2;
END
$outbox$;
COMMENT ON FUNCTION @schema@._bury(text, bigint, int, text) IS 'makes a dead letter';
