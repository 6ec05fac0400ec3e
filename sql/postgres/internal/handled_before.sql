-- _handled_before returns which of the given pairs (handler, key) are in the inbox already, as
-- indexes into the arrays, from 1. Each is one probe of the primary key: the settings rule out
-- every plan that reads more, whatever the statistics say.
CREATE OR REPLACE FUNCTION @schema@._handled_before(handlers text[], keys text[])
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $outbox$
BEGIN
    -- Only the owner may read all of the inbox; others go through a door.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN QUERY SELECT w FROM @schema@._worker_handled_before(handlers, keys) w;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT x.n
    FROM unnest(handlers, keys) WITH ORDINALITY AS x (handler, key, n)
    WHERE EXISTS (SELECT 1 FROM @schema@.handled h
                  WHERE h.handler = x.handler AND h.key = x.key
                    AND h.tenant = coalesce(current_setting('outbox.tenant', true), ''));
END
$outbox$;
COMMENT ON FUNCTION @schema@._handled_before(text[], text[]) IS
    'which keys the handlers have taken effect for';
