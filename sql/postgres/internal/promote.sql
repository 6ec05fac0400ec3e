-- _promote makes the first parked event of each of the keys due, if it waited behind one that is
-- gone. One that failed while it was behind that one has not waited for its own time yet.
CREATE OR REPLACE FUNCTION @schema@._promote(consumer text, key_list bigint[], now timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    UPDATE @schema@.parked p SET due_at = greatest(now, p.failed_at + p.wait)
    WHERE p.claim IS NULL AND p.due_at IS NULL
      AND p.ctid = ANY (ARRAY(
          SELECT f.at
          FROM unnest(key_list) AS k (key), LATERAL ( -- by this index: see _parked_rows
               SELECT x.ctid AS at FROM @schema@.parked x
               WHERE x.consumer = _promote.consumer AND x.key BETWEEN k.key AND k.key
               ORDER BY x.key, x.seq LIMIT 1) f
          WHERE k.key <> 0));
END
$outbox$;
COMMENT ON FUNCTION @schema@._promote(text, bigint[], timestamptz) IS
    'lets the next of each key step forward';
