-- These are the doors of workers. A worker that may not write to the tables works on its own
-- consumers through them, with the rights of the tables' owner. Each door asks _admit whether the
-- caller is allowed in, and then calls the function that it is named after. That function comes
-- here if its caller may not write. A consumer of another tenant is treated as if it did not exist.

-- _worker_register is register, for workers.
CREATE OR REPLACE FUNCTION @schema@._worker_register(
    consumer text, events text, predicate text, ordering text, lanes int, retry text,
    start_at text, by_whom text, how text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
DECLARE
    operator boolean := @schema@._operates(@schema@._caller());
BEGIN
    -- Only an operator may bring back settings that were replaced.
    IF NOT @schema@._admit(CASE WHEN how = 'purpose' OR operator THEN 'operator'
                                ELSE 'consumer' END, consumer) THEN
        IF how <> 'start' THEN
            RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', consumer
                USING ERRCODE = 'OB003';
        END IF;
        RAISE EXCEPTION 'the name "%" is taken', consumer
            USING ERRCODE = 'OB004', HINT = 'give the consumer another one';
    END IF;
    -- The session may have set this to anything: _home must ask the server again.
    PERFORM set_config('outbox.cluster', '', true);
    RETURN @schema@.register(consumer, events, predicate, ordering, lanes, retry, start_at, by_whom,
                             how);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_register(
    text, text, text, text, int, text, text, text, text) IS
    'register, for workers';

-- _worker_extend is extend, for workers.
CREATE OR REPLACE FUNCTION @schema@._worker_extend(
    consumer text, worker text, epoch bigint, lease_ms bigint, absolve boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit('consumer', consumer)
       AND @schema@.extend(consumer, worker, epoch, lease_ms, absolve);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_extend(text, text, bigint, bigint, boolean) IS
    'extend, for workers';

-- _worker_shrink is _shrink, for workers.
CREATE OR REPLACE FUNCTION @schema@._worker_shrink(
    consumer text, worker text, epoch bigint, last bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit('consumer', consumer)
       AND @schema@._shrink(consumer, worker, epoch, last);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_shrink(text, text, bigint, bigint) IS 'shrink, for workers';

-- _worker_report is _report, for workers.
CREATE OR REPLACE FUNCTION @schema@._worker_report(consumer text, said text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF @schema@._admit('consumer', consumer) THEN
        PERFORM @schema@._report(consumer, said);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_report(text, text) IS 'report, for workers';
