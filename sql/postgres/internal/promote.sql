-- _promote: makes the first parked event of a key due, if it waited behind one that is gone. One that failed while it was behind
-- that one has not waited for its own time yet.
CREATE OR REPLACE FUNCTION @schema@._promote(consumer text, key bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    UPDATE @schema@.parked p SET due_at = greatest(@schema@._clock(), p.failed_at + p.wait)
    WHERE p.consumer = $1 AND p.claim IS NULL AND p.due_at IS NULL AND $2 <> 0
      AND p.seq = (SELECT min(f.seq) FROM @schema@.parked f WHERE f.consumer = $1 AND f.key = $2);
END
$outbox$;
COMMENT ON FUNCTION @schema@._promote(text, bigint) IS 'lets the next of a key step forward';
