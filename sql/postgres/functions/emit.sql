-- emit: writes an event in the current transaction and returns its id. With an idempotency key that was used before, no
-- second event is made, and the first one's id is returned; with other content that is an error.
CREATE OR REPLACE FUNCTION @schema@.emit(type text, aggregate_type text, aggregate_id text, payload json,
                                         headers json DEFAULT NULL, idempotency_key text DEFAULT NULL,
                                         version bigint DEFAULT NULL, not_before timestamptz DEFAULT NULL,
                                         tenant text DEFAULT nullif(current_setting('outbox.tenant', true), ''))
RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    new_id uuid;
BEGIN
    IF idempotency_key IS NOT NULL THEN
        SELECT e.id INTO new_id FROM @schema@.emit_once(type, aggregate_type, aggregate_id, payload, headers,
                                                        idempotency_key, version, not_before, tenant) e;
        RETURN new_id;
    END IF;
    INSERT INTO @schema@.event (type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant)
    VALUES (emit.type, emit.aggregate_type, emit.aggregate_id, emit.payload, emit.headers, emit.version, emit.not_before,
            emit.tenant) RETURNING id INTO new_id;
    RETURN new_id;
END
$outbox$;
COMMENT ON FUNCTION @schema@.emit(text, text, text, json, json, text, bigint, timestamptz, text) IS
    'writes an event in the current transaction; returns its id';
