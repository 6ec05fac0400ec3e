-- emit: writes an event in the current transaction and returns its id. With an idempotency key that was used before, no
-- second event is made, and the first one's id is returned; with other content that is an error. Needs the right to insert
-- events, none to read them. tenant NULL: the one this connection works for.
CREATE OR REPLACE FUNCTION @schema@.emit(type text, aggregate_type text, aggregate_id text, payload json,
                                         headers json DEFAULT NULL, idempotency_key text DEFAULT NULL,
                                         version bigint DEFAULT NULL, not_before timestamptz DEFAULT NULL,
                                         tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    new_id uuid := @schema@.uuid7();
BEGIN
    IF idempotency_key IS NOT NULL THEN
        SELECT e.id INTO new_id FROM @schema@.emit_once(type, aggregate_type, aggregate_id, payload, headers,
                                                        idempotency_key, version, not_before, tenant) e;
        RETURN new_id;
    END IF;
    INSERT INTO @schema@.event (id, type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant)
    VALUES (new_id, emit.type, emit.aggregate_type, emit.aggregate_id, emit.payload, emit.headers, emit.version,
            emit.not_before, coalesce(emit.tenant, nullif(current_setting('outbox.tenant', true), '')));
    RETURN new_id;
END
$outbox$;
COMMENT ON FUNCTION @schema@.emit(text, text, text, json, json, text, bigint, timestamptz, text) IS
    'writes an event in the current transaction; returns its id';
