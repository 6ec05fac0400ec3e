-- These are the doors of operators. Each runs with the rights of the tables' owner, asks _admit
-- whether the caller is allowed in, and then calls the public function that it is named after. That
-- function comes here if its caller may not write. A consumer of another tenant is treated as if it
-- did not exist.

-- _operator_pause is pause, for operators.
CREATE OR REPLACE FUNCTION @schema@._operator_pause(consumer text, paused boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit('operator', consumer) AND @schema@.pause(consumer, paused);
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_pause(text, boolean) IS 'pause, for operators';

-- _operator_redrive is redrive, for operators.
CREATE OR REPLACE FUNCTION @schema@._operator_redrive(consumer text, seqs bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@._admit('operator', consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered', consumer USING ERRCODE = 'OB003';
    END IF;
    RETURN @schema@._redrive(consumer, seqs);
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_redrive(text, bigint[]) IS 'redrive, for operators';

-- _operator_retry is retry_now, for operators.
CREATE OR REPLACE FUNCTION @schema@._operator_retry(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit('operator', consumer) AND @schema@.retry_now(consumer, seq);
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_retry(text, bigint) IS 'retry_now, for operators';

-- _operator_drop is drop_dead, for operators.
CREATE OR REPLACE FUNCTION @schema@._operator_drop(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit('operator', consumer) AND @schema@.drop_dead(consumer, seq);
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_drop(text, bigint) IS 'drop_dead, for operators';

-- _operator_remove is remove, for operators. The counts are NULL if the consumer is not there.
CREATE OR REPLACE FUNCTION @schema@._operator_remove(
    consumer text, force boolean,
    OUT known boolean, OUT dead bigint, OUT parked bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    known := @schema@._admit('operator', consumer);
    IF known THEN
        SELECT r.* INTO known, dead, parked, live FROM @schema@.remove(consumer, force) r;
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_remove(text, boolean) IS 'remove, for operators';

-- _operator_trim is trim, for operators. It concerns no consumer in particular.
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
END
$outbox$;
COMMENT ON FUNCTION @schema@._operator_trim(interval, int, interval, bigint) IS
    'trim, for operators';
