-- emit_once: emit with an idempotency key, which also says whether the key was known (then id is the first event's).
CREATE OR REPLACE FUNCTION @schema@.emit_once(type text, aggregate_type text, aggregate_id text, payload json, headers json,
                                              idempotency_key text, version bigint DEFAULT NULL,
                                              not_before timestamptz DEFAULT NULL,
                                              tenant text DEFAULT NULL,
                                              OUT id uuid, OUT duplicate boolean)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    content bigint := hashtextextended(concat_ws(chr(1), type, coalesce(aggregate_type, chr(2)),
                                                 coalesce(aggregate_id, chr(2)), payload::text), 0);
    whose text := coalesce(tenant, nullif(current_setting('outbox.tenant', true), ''));
    known record;
BEGIN
    -- Waits for a transaction that is about to use the same key.
    id := @schema@.uuid7();
    INSERT INTO @schema@.idempotency (tenant, key, event_id, hash)
    VALUES (coalesce(whose, ''), emit_once.idempotency_key, emit_once.id, content) ON CONFLICT DO NOTHING;
    duplicate := NOT FOUND;
    IF duplicate THEN
        SELECT i.event_id, i.hash INTO known FROM @schema@.idempotency i WHERE i.key = emit_once.idempotency_key
           AND i.tenant = coalesce(whose, '');
        IF known.hash IS DISTINCT FROM content THEN
            RAISE EXCEPTION 'idempotency key "%" was used before with another type, aggregate or payload (event %)',
                left(idempotency_key, 100), known.event_id USING ERRCODE = 'OB001';
        END IF;
        id := known.event_id;
        RETURN;
    END IF;
    INSERT INTO @schema@.event (id, type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant)
    VALUES (emit_once.id, emit_once.type, emit_once.aggregate_type, emit_once.aggregate_id, emit_once.payload,
            emit_once.headers, emit_once.version, emit_once.not_before, whose);
END
$outbox$;
COMMENT ON FUNCTION @schema@.emit_once(text, text, text, json, json, text, bigint, timestamptz, text) IS
    'emit with an idempotency key; says whether it was known';
