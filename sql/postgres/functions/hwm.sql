-- The last id that was written to a stream and recorded, in Redis's form (1748100000000-0); NULL if
-- none was. In one snapshot with your rows (REPEATABLE READ), these contain everything that the
-- stream has up to this id. Consumers of other tenants do not count. If your workers do not trust
-- each other, name the consumer that writes the stream.
CREATE OR REPLACE FUNCTION @schema@.hwm(stream text) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT m.hi || '-' || m.lo
    FROM @schema@.mark m JOIN @schema@.consumer c ON c.name = m.consumer
    WHERE m.stream = hwm.stream AND c.tenant = (SELECT @schema@._acting_for(current_user))
    ORDER BY m.hi DESC, m.lo DESC LIMIT 1
$outbox$;
COMMENT ON FUNCTION @schema@.hwm(text) IS 'the last id in a stream that was written and recorded';

-- hwm with a consumer returns the last id that this consumer wrote and recorded.
CREATE OR REPLACE FUNCTION @schema@.hwm(stream text, consumer text) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT m.hi || '-' || m.lo FROM @schema@.mark m
    WHERE m.stream = hwm.stream AND m.consumer = hwm.consumer
$outbox$;
COMMENT ON FUNCTION @schema@.hwm(text, text) IS
    'the last id in a stream that a consumer wrote and recorded';
