-- These are the doors of the inbox; worker.sql describes what a door is. A handler's name is
-- granted as a consumer's name is: a role that could record for another's handler could keep it
-- from ever taking effect.

-- _worker_handle is _handle, for workers.
CREATE OR REPLACE FUNCTION @schema@._worker_handle(handler text, key text, content bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', handler);
    RETURN @schema@._handle(handler, key, content);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_handle(text, text, bigint) IS 'handle, for workers';

-- _worker_handle_all is _handle_all, for workers. Each handler is asked for once.
CREATE OR REPLACE FUNCTION @schema@._worker_handle_all(handlers text[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', x.handler)
    FROM (SELECT DISTINCT y AS handler FROM unnest(handlers) AS y) x;
    RETURN @schema@._handle_all(handlers, keys);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_handle_all(text[], text[]) IS 'handle_all, for workers';

-- _worker_handled_before is _handled_before, for workers. Each handler is asked for once.
CREATE OR REPLACE FUNCTION @schema@._worker_handled_before(handlers text[], keys text[])
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', x.handler)
    FROM (SELECT DISTINCT y AS handler FROM unnest(handlers) AS y) x;
    RETURN QUERY SELECT b FROM @schema@._handled_before(handlers, keys) b;
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_handled_before(text[], text[]) IS
    'handled_before, for workers';
