-- _handle_all is the inbox for many events at once. It records in the current transaction that each
-- handler takes effect for its key. Returns whether this was the first time for all of them; if
-- not, nothing is recorded. It does without ON CONFLICT, which costs three times as much as the
-- row.
CREATE OR REPLACE FUNCTION @schema@._handle_all(handlers text[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- Only the owner may write to the tables; others go through a door.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_handle_all(handlers, keys);
    END IF;
    INSERT INTO @schema@.handled (tenant, handler, key, hash)
    SELECT coalesce(current_setting('outbox.tenant', true), ''),
           x.handler, x.key, hashtextextended('', 0)
    FROM unnest(handlers, keys) AS x (handler, key);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false; -- the block's savepoint has undone the rows before it
END
$outbox$;
COMMENT ON FUNCTION @schema@._handle_all(text[], text[]) IS 'the inbox, for many at once';
