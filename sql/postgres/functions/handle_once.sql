-- handle_once: the inbox. Records in the current transaction that a handler takes effect for a key (an event's id, or any
-- other); returns whether it is the first to. The same key with another payload is an error.
CREATE OR REPLACE FUNCTION @schema@.handle_once(handler text, key text, payload text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    content bigint := hashtextextended(coalesce(payload, ''), 0);
    known bigint;
BEGIN
    INSERT INTO @schema@.handled (handler, key, hash) VALUES (handle_once.handler, handle_once.key, content)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT h.hash INTO known FROM @schema@.handled h WHERE h.handler = handle_once.handler AND h.key = handle_once.key;
    IF known IS DISTINCT FROM content THEN
        RAISE EXCEPTION 'handler "%" has handled key "%" before with another payload', left(handler, 100), left(key, 100)
            USING ERRCODE = 'OB001';
    END IF;
    RETURN false;
END
$outbox$;
COMMENT ON FUNCTION @schema@.handle_once(text, text, text) IS 'the inbox: true the first time, in the same transaction as the effect';
