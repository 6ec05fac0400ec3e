-- _worker_turn is _turn for a role that may not write to the tables. A door, see _admit.
CREATE OR REPLACE FUNCTION @schema@._worker_turn(
    consumer text, owner text, knows int,
    s @schema@._settlement, q @schema@._request, a @schema@._ahead) RETURNS @schema@._answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    IF NOT @schema@._admit('consumer', consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered; it may have been removed', consumer
            USING ERRCODE = 'OB003';
    END IF;
    RETURN @schema@._turn(consumer, owner, knows, s, q, a);
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_turn(text, text, int, @schema@._settlement, @schema@._request,
    @schema@._ahead) IS '_turn, for workers';
