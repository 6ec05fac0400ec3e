-- SECURITY DEFINER wrappers, through which roles without write access work with the rights of the
-- tables' owner: a worker on its own consumers (_worker_*), an operator on any (_operator_*). Each
-- checks the caller with _admit, and calls the function that it is named after. A consumer of
-- another tenant is treated as if it did not exist.

CREATE OR REPLACE FUNCTION @schema@._worker_register(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text, by_whom text, how text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    -- Only an operator may restore settings that were replaced.
    IF NOT @schema@._admit(CASE WHEN how = 'purpose' OR @schema@._operates(@schema@._caller())
                                THEN 'operator' ELSE 'consumer' END, consumer) THEN
        IF how <> 'start' THEN
            RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', consumer
                USING ERRCODE = 'OB003';
        END IF;
        RAISE EXCEPTION 'the name "%" is taken', consumer
            USING ERRCODE = 'OB004', HINT = 'give the consumer another one';
    END IF;
    -- The session may have set this to any value: _home must ask the server again.
    PERFORM set_config('outbox.cluster', '', true);
    RETURN @schema@.register(consumer, events, predicate, ordering, lanes, retry, start_at, by_whom,
                             how);
END $outbox$;

@include wrapper(_worker_extend,
    (consumer text, worker text, epoch bigint, lease_ms bigint, absolve boolean),
    'consumer', extend(consumer, worker, epoch, lease_ms, absolve))@

@include wrapper(_worker_shrink, (consumer text, worker text, epoch bigint, last bigint),
    'consumer', _shrink(consumer, worker, epoch, last))@

CREATE OR REPLACE FUNCTION @schema@._worker_report(consumer text, said text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._report(consumer, said) WHERE @schema@._admit('consumer', consumer);
END $outbox$;

CREATE OR REPLACE FUNCTION @schema@._worker_turn(q @schema@._request, knows int)
RETURNS @schema@._answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@._admit('consumer', q.consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', q.consumer
            USING ERRCODE = 'OB003';
    END IF;
    RETURN @schema@._turn(q, knows);
END $outbox$;

CREATE OR REPLACE FUNCTION @schema@._worker_turns(
    asked @schema@._request[], path text, knows int) RETURNS @schema@._answer[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    -- A worker could report any cluster: ask the server, as in _turn_home.
    PERFORM set_config('outbox.cluster', '', true);
    PERFORM @schema@._home();
    asked := ARRAY(SELECT x FROM unnest(asked) x WHERE @schema@._admit('consumer', x.consumer));
    RETURN @include make_turns(asked, path, knows)@;
END $outbox$;

-- The inbox. A handler's name is granted like a consumer's: otherwise a role could record keys for
-- another role's handler, and prevent it from ever handling them.

CREATE OR REPLACE FUNCTION @schema@._worker_handle(handler text, key text, content bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', handler);
    RETURN @schema@._handle(handler, key, content);
END $outbox$;

CREATE OR REPLACE FUNCTION @schema@._worker_handle_all(handlers text[], keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', x.handler)
    FROM (SELECT DISTINCT y AS handler FROM unnest(handlers) AS y) x;
    RETURN @schema@._handle_all(handlers, keys);
END $outbox$;

CREATE OR REPLACE FUNCTION @schema@._worker_handled_before(handlers text[], keys text[])
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('consumer', x.handler)
    FROM (SELECT DISTINCT y AS handler FROM unnest(handlers) AS y) x;
    RETURN QUERY SELECT b FROM @schema@._handled_before(handlers, keys) b;
END $outbox$;

@include wrapper(_operator_pause, (consumer text, paused boolean),
    'operator', pause(consumer, paused))@

@include wrapper(_operator_retry, (consumer text, seq bigint),
    'operator', retry_now(consumer, seq))@

@include wrapper(_operator_drop, (consumer text, seq bigint),
    'operator', drop_dead(consumer, seq))@

CREATE OR REPLACE FUNCTION @schema@._operator_redrive(consumer text, seqs bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@._admit('operator', consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered', consumer USING ERRCODE = 'OB003';
    END IF;
    RETURN @schema@._redrive(consumer, seqs);
END $outbox$;

-- The counts are NULL if the consumer does not exist.
CREATE OR REPLACE FUNCTION @schema@._operator_remove(
    consumer text, force boolean,
    OUT known boolean, OUT dead bigint, OUT parked bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    known := @schema@._admit('operator', consumer);
    IF known THEN
        SELECT r.* INTO known, dead, parked, live FROM @schema@.remove(consumer, force) r;
    END IF;
END $outbox$;

-- A trim does not concern a particular consumer.
CREATE OR REPLACE FUNCTION @schema@._operator_trim(
    older_than interval, max_rows int, inbox interval, after bigint,
    OUT events bigint, OUT keys bigint, OUT inbox_rows bigint, OUT receipts bigint,
    OUT kept bigint, OUT kept_more boolean, OUT pin text, OUT more boolean,
    OUT upto bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    PERFORM @schema@._admit('operator', '');
    SELECT t.* INTO events, keys, inbox_rows, receipts, kept, kept_more, pin, more, upto
    FROM @schema@.trim(older_than, max_rows, inbox, after) t;
END $outbox$;
