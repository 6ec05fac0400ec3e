-- Sends dead letters back: all of a consumer, or the one with this event id. They are parked, due
-- at once, with no attempt used, and until settled stay dead letters (retrying). Returns how many.
CREATE OR REPLACE FUNCTION @schema@.redrive(consumer text, event_id uuid DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    RETURN @schema@._redrive(consumer, CASE WHEN event_id IS NOT NULL THEN ARRAY(
        SELECT d.seq FROM @schema@.dead d
        WHERE d.consumer = redrive.consumer AND d.id = redrive.event_id) END);
END $outbox$;
COMMENT ON FUNCTION @schema@.redrive(text, uuid) IS 'sends dead letters back';

-- Sends back the dead letters with these seqs; NULL: all.
CREATE OR REPLACE FUNCTION @schema@._redrive(consumer text, seqs bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    n bigint;
    now timestamptz;
BEGIN
    @include through(_operator_redrive(consumer, seqs))@
    now := @schema@._clock() + @schema@._lock_consumer(consumer);
    IF NOT EXISTS (SELECT 1 FROM @schema@.consumer c WHERE c.name = _redrive.consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered', _redrive.consumer
            USING ERRCODE = 'OB003', HINT = '`outbox consumers list` lists the consumers';
    END IF;

    PERFORM @schema@._due_since(consumer, now);
    -- An event behind another of the same key has no due time, and is claimed with it.
    INSERT INTO @schema@.parked (consumer, seq, key, attempts, due_at)
    SELECT w.consumer, w.seq, w.key, 0,
           CASE WHEN w.key = 0
                     OR w.nth = 1 AND @include waits_behind(w.consumer, w)@ IS NULL THEN now END
    FROM (SELECT d.consumer, d.seq, y.key,
                 row_number() OVER (PARTITION BY y.key ORDER BY d.seq) AS nth
          FROM @schema@.dead d
          JOIN @schema@.consumer c ON c.name = d.consumer
          CROSS JOIN LATERAL (
               SELECT @schema@._key(c.ordering, d.aggregate_type, d.aggregate_id) AS key) y
          WHERE d.consumer = _redrive.consumer AND NOT d.retrying
            AND (seqs IS NULL OR d.seq IN (SELECT unnest(seqs)))) w
    ON CONFLICT DO NOTHING;
    UPDATE @schema@.dead d SET retrying = true
    WHERE d.consumer = _redrive.consumer AND NOT d.retrying
      AND (seqs IS NULL OR d.seq IN (SELECT unnest(seqs)));
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM @schema@._wakeup_notify_all();
    RETURN n;
END $outbox$;

-- Makes an event that waits for its next attempt due at once; attempts used still count. One that
-- waits behind another or for its not_before keeps waiting. Returns whether it was waiting.
CREATE OR REPLACE FUNCTION @schema@.retry_now(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    now timestamptz;
BEGIN
    @include through(_operator_retry(consumer, seq))@
    now := @schema@._clock() + @schema@._lock_consumer(consumer);
    PERFORM @schema@._due_since(consumer, now);
    UPDATE @schema@.parked p SET due_at = least(p.due_at, now)
    WHERE p.consumer = retry_now.consumer AND p.seq = retry_now.seq AND p.claim IS NULL
        AND p.due_at IS NOT NULL AND NOT p.delayed;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM @schema@._wakeup_notify_all();
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.retry_now(text, bigint) IS 'makes an event due at once';

-- Deletes a dead letter, unless it was sent back. Returns whether it deleted one.
CREATE OR REPLACE FUNCTION @schema@.drop_dead(consumer text, seq bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    @include through(_operator_drop(consumer, seq))@
    DELETE FROM @schema@.dead d
    WHERE d.consumer = drop_dead.consumer AND d.seq = drop_dead.seq AND NOT d.retrying;
    RETURN FOUND;
END $outbox$;
COMMENT ON FUNCTION @schema@.drop_dead(text, bigint) IS 'deletes a dead letter';
