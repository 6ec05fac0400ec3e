-- handle_once is the inbox. It records in the current transaction that a handler handles a key, an
-- event's id or any other text, and returns whether this is the first time. The same key with
-- another payload is an error. Each type of payload has its own function, as with emit.
DO $outbox$
DECLARE
    p text;
BEGIN
    FOREACH p IN ARRAY ARRAY['text DEFAULT ''''', 'json', 'jsonb'] LOOP
        EXECUTE replace($function$
CREATE OR REPLACE FUNCTION @schema@.handle_once(
    handler text, key anycompatible, payload <payload>) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $body$
DECLARE
    the_key text := key::text;
    content bigint := hashtextextended(coalesce(payload::text, ''), 0);
    known bigint;
BEGIN
    IF octet_length(coalesce(handler, '')) NOT BETWEEN 1 AND 1024
       OR octet_length(coalesce(the_key, '')) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'handler and key: 1 to 1024 bytes each' USING ERRCODE = 'check_violation';
    END IF;
    -- The inbox records a hash of the payload; known is the hash of the first one.
    known := @schema@._handle(handler, the_key, content);
    IF known IS NULL THEN
        RETURN true;
    END IF;
    IF known <> content THEN
        RAISE EXCEPTION 'handler "%" has handled key "%" before with another payload',
            left(handler, 100), left(the_key, 100) USING ERRCODE = 'OB001';
    END IF;
    RETURN false;
END
$body$$function$, '<payload>', p);
        EXECUTE format('COMMENT ON FUNCTION %s.handle_once(text, anycompatible, %s) IS %L',
                       '@schema@', split_part(p, ' ', 1),
                       'the inbox: true the first time, in the same transaction as the effect');
    END LOOP;
END
$outbox$;
