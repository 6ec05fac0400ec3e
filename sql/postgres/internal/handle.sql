-- _handle records that a handler takes effect for a key, with the hash of what came with it.
-- Returns NULL if this is the first time, and otherwise the hash that was recorded then. It waits
-- for a transaction that is recording the same key.
CREATE OR REPLACE FUNCTION @schema@._handle(handler text, key text, content bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    whose text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    -- Only the owner may write to the tables; others go through a door.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_handle(handler, key, content);
    END IF;
    INSERT INTO @schema@.handled (tenant, handler, key, hash)
    VALUES (whose, _handle.handler, _handle.key, content)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT coalesce(h.hash, 0)
            FROM @schema@.handled h
            WHERE h.tenant = whose AND h.handler = _handle.handler AND h.key = _handle.key);
END
$outbox$;
COMMENT ON FUNCTION @schema@._handle(text, text, bigint) IS
    'records that a handler takes effect for a key';
