-- _handle_all: the inbox, for many at once: records that each handler takes effect for its key, in the current transaction, and
-- says whether all were the first to; if not, nothing is recorded. No ON CONFLICT: that costs thrice what the row itself does.
CREATE OR REPLACE FUNCTION @schema@._handle_all(handlers text[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN @schema@._worker_handle_all(handlers, keys);
    END IF;
    INSERT INTO @schema@.handled (tenant, handler, key, hash)
    SELECT coalesce(current_setting('outbox.tenant', true), ''), x.handler, x.key, hashtextextended('', 0) FROM unnest(handlers, keys) AS x (handler, key);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$outbox$;
COMMENT ON FUNCTION @schema@._handle_all(text[], text[]) IS 'the inbox, for many at once';
