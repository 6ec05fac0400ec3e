-- Records how a claim ended, and ends it. Events that no outcome names were delivered. If the
-- worker no longer has the claim, it does nothing and returns false. It may share a transaction
-- with the effects of the delivery.
--
-- outcomes is an array, in the order in which the events were handed out:
--
--     [{"seq": 5, "kind": "retry", "attempts": 1, "delay_ms": 1000, "error": "..."}, ...]
--
-- attempts is the number used so far; if left out, this one is counted. kind is one of
--
--     retry      it failed, and will be retried
--     dead       it failed for good
--     behind     it was not tried: its key is held back
--     delay      it was not tried: its not_before is in the future
--     skip       the worker did not want it; it is shown as skipped
--     delivered  it was delivered; give id and receipt to keep a receipt
--
-- Events from release_from on were never tried, and are released; 0: none.
CREATE OR REPLACE FUNCTION @schema@.settle(
    consumer text, worker text, epoch bigint, outcomes jsonb DEFAULT '[]',
    release_from bigint DEFAULT 0) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    q @schema@._request := @schema@._no_request(consumer, worker);
    wrong bigint;
BEGIN
    IF jsonb_typeof(outcomes) IS DISTINCT FROM 'array' OR worker IS NULL OR epoch IS NULL THEN
        RAISE EXCEPTION 'settle takes a worker, an epoch and an array of outcomes'
            USING ERRCODE = 'OB004';
    END IF;
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(outcomes) o
               WHERE jsonb_typeof(o) <> 'object' OR o ? 'seqs') THEN -- sets are for relays
        RAISE EXCEPTION 'an outcome is an object with a seq and a kind' USING ERRCODE = 'OB004';
    END IF;
    SELECT min(o.seq) INTO wrong FROM jsonb_to_recordset(outcomes) AS o (seq bigint)
    WHERE o.seq >= nullif(release_from, 0);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'event % has an outcome, but release_from releases it', wrong
            USING ERRCODE = 'OB004';
    END IF;

    q.epoch := epoch;
    q.outcomes := outcomes;
    q.release_from := release_from;
    q.tried := (SELECT count(*)
                FROM @schema@._claimed(settle.consumer, settle.epoch) e
                WHERE e.seq < settle.release_from OR settle.release_from = 0);
    RETURN (SELECT NOT t.lost FROM @schema@._turn(q, NULL) t);
END $outbox$;
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, jsonb, bigint) IS 'ends a claim';

-- Drivers send JSON as jsonb, as json, or as text, which is also JSON without a type.
CREATE OR REPLACE FUNCTION @schema@.settle(
    consumer text, worker text, epoch bigint, outcomes json, release_from bigint DEFAULT 0)
RETURNS boolean LANGUAGE sql VOLATILE
RETURN @schema@.settle(consumer, worker, epoch, outcomes::jsonb, release_from);
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, json, bigint) IS 'ends a claim';

CREATE OR REPLACE FUNCTION @schema@.settle(
    consumer text, worker text, epoch bigint, outcomes text, release_from bigint DEFAULT 0)
RETURNS boolean LANGUAGE sql VOLATILE
RETURN @schema@.settle(consumer, worker, epoch, outcomes::jsonb, release_from);
COMMENT ON FUNCTION @schema@.settle(text, text, bigint, text, bigint) IS 'ends a claim';

-- The last id that was written to a stream and recorded, in Redis's form (1748100000000-0); NULL if
-- none was. In one snapshot with your rows (REPEATABLE READ), these contain everything that the
-- stream has up to this id. Consumers of other tenants do not count. If your workers do not trust
-- each other, name the consumer that writes the stream.
CREATE OR REPLACE FUNCTION @schema@.hwm(stream text) RETURNS text LANGUAGE sql STABLE AS $outbox$
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
COMMENT ON FUNCTION @schema@.hwm(text, text) IS 'the last id that a consumer wrote and recorded';
