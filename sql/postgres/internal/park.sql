-- _park: an event waits until due, or behind an event of its key that is parked already: then it has no time of its own.
CREATE OR REPLACE FUNCTION @schema@._park(consumer text, seq bigint, key bigint, attempts int, due timestamptz,
                                         wait interval, careful boolean, delayed boolean, error text, proven boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.parked AS p (consumer, seq, key, attempts, due_at, wait, careful, delayed, error, failed_at,
                                       failing_since, proven)
    VALUES ($1, $2, $3, $4,
            CASE WHEN $3 <> 0 AND EXISTS (SELECT 1 FROM @schema@.parked b WHERE b.consumer = $1 AND b.key = $3 AND b.seq < $2)
                 THEN NULL ELSE $5 END,
            $6, $7, $8, $9, CASE WHEN $9 IS NOT NULL THEN @schema@._clock() END,
            CASE WHEN $9 IS NOT NULL THEN @schema@._clock() END, $10)
    ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE SET attempts = excluded.attempts, due_at = excluded.due_at,
        wait = excluded.wait, careful = excluded.careful, delayed = excluded.delayed, claim = NULL,
        error = coalesce(excluded.error, p.error), failed_at = coalesce(excluded.failed_at, p.failed_at),
        failing_since = coalesce(p.failing_since, excluded.failing_since), proven = p.proven OR excluded.proven;
END
$outbox$;
COMMENT ON FUNCTION @schema@._park(text, bigint, bigint, int, timestamptz, interval, boolean, boolean, text, boolean) IS
    'makes an event wait';
