-- remove deletes a consumer with everything that belongs to it. Unless forced, it does nothing
-- while the consumer has dead letters, parked events or live claims. It counts these in any case.
-- known says whether there is a consumer of that name.
CREATE OR REPLACE FUNCTION @schema@.remove(
    consumer text, force boolean DEFAULT false,
    OUT known boolean, OUT dead bigint, OUT parked bigint, OUT live bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- A caller that may not write to the tables goes through the operators' door, and comes back
    -- here.
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        SELECT r.* INTO known, dead, parked, live FROM @schema@._operator_remove(consumer, force) r;
        RETURN;
    END IF;

    -- What would be lost?
    PERFORM @schema@._lock_consumer(consumer);
    known := EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = remove.consumer);
    SELECT count(*) INTO dead FROM @schema@.dead d WHERE d.consumer = remove.consumer;
    SELECT count(*) INTO parked FROM @schema@.parked p WHERE p.consumer = remove.consumer;
    SELECT count(*) INTO live FROM @schema@.claim k
    WHERE k.consumer = remove.consumer AND k.locked_until > @schema@._clock();
    IF NOT known OR NOT force AND dead + parked + live > 0 THEN
        RETURN;
    END IF;

    -- The trigger on dead letters records them in `ended` as dropped, so `ended` comes after them.
    DELETE FROM @schema@.lane x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.claim x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.parked x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.dead x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.ended x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.passed x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.former_filter x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.receipt x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.mark x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.setting x WHERE x.consumer = remove.consumer;
    DELETE FROM @schema@.consumer x WHERE x.name = remove.consumer;
END
$outbox$;
COMMENT ON FUNCTION @schema@.remove(text, boolean) IS 'deletes a consumer';
