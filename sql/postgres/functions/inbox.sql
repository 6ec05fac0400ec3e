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
    known := @schema@._handle(handler, the_key, content);
    IF known IS NULL THEN RETURN true; END IF;
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
END $outbox$;

-- Records that a handler handles a key, with the hash of its event. It returns NULL the first time,
-- and the recorded hash after that. It waits for another transaction with the same key.
CREATE OR REPLACE FUNCTION @schema@._handle(handler text, key text, content bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    whose text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    @include through(_worker_handle(handler, key, content))@
    INSERT INTO @schema@.handled (tenant, handler, key, hash)
    VALUES (whose, _handle.handler, _handle.key, content)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN NULL; END IF;
    RETURN (SELECT coalesce(h.hash, 0)
            FROM @schema@.handled h
            WHERE h.tenant = whose AND h.handler = _handle.handler AND h.key = _handle.key);
END $outbox$;

-- Records many events in the inbox, in the current transaction: each handler handles its key. It
-- returns true if this was the first time for all of them; otherwise it records nothing. It avoids
-- ON CONFLICT, which costs three times as much as the row.
CREATE OR REPLACE FUNCTION @schema@._handle_all(handlers text[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    @include through(_worker_handle_all(handlers, keys))@
    INSERT INTO @schema@.handled (tenant, handler, key, hash)
    SELECT coalesce(current_setting('outbox.tenant', true), ''),
           x.handler, x.key, hashtextextended('', 0)
    FROM unnest(handlers, keys) AS x (handler, key);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false; -- the block's savepoint has undone the earlier rows
END $outbox$;

-- Which of the given pairs (handler, key) are in the inbox already, as indexes into the arrays,
-- from 1. Each pair takes one probe of the primary key: the settings rule out other plans.
CREATE OR REPLACE FUNCTION @schema@._handled_before(handlers text[], keys text[])
RETURNS SETOF bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $outbox$
BEGIN
    -- Only the owner may read all of the inbox; others go through a wrapper.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN QUERY SELECT w FROM @schema@._worker_handled_before(handlers, keys) w;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT x.n FROM unnest(handlers, keys) WITH ORDINALITY AS x (handler, key, n)
    WHERE EXISTS (SELECT 1 FROM @schema@.handled h
                  WHERE h.handler = x.handler AND h.key = x.key
                    AND h.tenant = coalesce(current_setting('outbox.tenant', true), ''));
END $outbox$;
