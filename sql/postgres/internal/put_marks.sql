-- _put_marks records how far a consumer has written streams. marks is an array:
--     [{"stream": "orders", "hi": 1748100000000, "lo": 0}, ...]
-- A mark never goes back. Under _lock_consumer.
CREATE OR REPLACE FUNCTION @schema@._put_marks(consumer text, marks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.mark AS k (stream, consumer, hi, lo, at)
    SELECT m.stream, _put_marks.consumer, m.hi, m.lo, @schema@._clock()
    FROM jsonb_to_recordset(marks) AS m (stream text, hi bigint, lo bigint)
    ON CONFLICT ON CONSTRAINT mark_pkey DO UPDATE
    SET hi = excluded.hi, lo = excluded.lo, at = excluded.at
    WHERE (excluded.hi, excluded.lo) > (k.hi, k.lo);
END
$outbox$;
COMMENT ON FUNCTION @schema@._put_marks(text, jsonb) IS
    'notes how far a consumer has written streams';
