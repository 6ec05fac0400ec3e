-- The inbox: the keys that each handler has handled.

-- Records that a handler handles a key, with the hash of its event. It returns NULL the first time,
-- and the recorded hash after that. If another transaction is recording the same key, _handle waits
-- for it.
CREATE OR REPLACE FUNCTION @schema@._handle(handler text, key text, content bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    whose text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    @include through(_worker_handle(handler, key, content))@
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
END
$outbox$;

-- Which of the given pairs (handler, key) are in the inbox already, as indexes into the arrays,
-- from 1. Each pair takes one probe of the primary key: the settings rule out any plan that reads
-- more, whatever the statistics.
CREATE OR REPLACE FUNCTION @schema@._handled_before(handlers text[], keys text[])
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $outbox$
BEGIN
    -- Only the owner may read all of the inbox; others go through a wrapper.
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
