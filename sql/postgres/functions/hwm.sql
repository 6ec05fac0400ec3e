-- hwm: the last id in a stream that was written and recorded, as Redis writes it: 1748100000000-0; NULL: none. In one snapshot
-- with your rows (REPEATABLE READ), those hold everything that the stream has up to it: read on from there.
CREATE OR REPLACE FUNCTION @schema@.hwm(stream text) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT m.hi || '-' || m.lo FROM @schema@.mark m WHERE m.stream = hwm.stream ORDER BY m.hi DESC, m.lo DESC LIMIT 1
$outbox$;
COMMENT ON FUNCTION @schema@.hwm(text) IS 'the last id in a stream that was written and recorded';
