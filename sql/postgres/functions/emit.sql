-- emit inserts an event in the current transaction and returns its id. If its idempotency key was
-- used before, it returns the id of the first event; with other content, it is an error. The caller
-- needs no right to read events. If tenant is NULL, the connection's counts.
--
-- Drivers send JSON as json, jsonb, text, bytes or without a type (text), and ids as any type. So
-- each type of payload and headers has its own function. Only text headers have a default: no call
-- is ambiguous.
DO $outbox$
DECLARE
    p text;
    h text;
BEGIN
    FOR p, h IN SELECT *
                FROM unnest('{text, json, jsonb, bytea}'::text[]) AS x,
                     unnest('{text DEFAULT NULL, json, jsonb}'::text[]) AS y LOOP
        EXECUTE replace(replace(replace($function$
CREATE OR REPLACE FUNCTION @schema@.emit(
    type text, aggregate_type text, aggregate_id anycompatible, payload <payload>,
    headers <headers>, idempotency_key text DEFAULT NULL, version bigint DEFAULT NULL,
    not_before timestamptz DEFAULT NULL, tenant text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $body$
DECLARE -- Every name is schema-qualified.
    new_id pg_catalog.uuid := @schema@._uuid7();
BEGIN
    IF idempotency_key IS NOT NULL THEN
        SELECT e.id INTO new_id
        FROM @schema@.emit_once(type, aggregate_type, aggregate_id, payload, headers,
                                idempotency_key, version, not_before, tenant) e;
        RETURN new_id;
    END IF;

    -- A producer that is limited to a tenant may not choose the id, but may read it.
    IF NOT pg_catalog.has_column_privilege('@schema@.event'::pg_catalog.regclass, 'id',
                                           'INSERT') THEN
        INSERT INTO @schema@.event (@include fields()@)
        VALUES (@include values_of(emit)@,
                coalesce(emit.tenant, @schema@._acting_for(current_user)))
        RETURNING event.id INTO new_id;
        RETURN new_id;
    END IF;

    -- Any other producer may choose the id, but not read it, so there is no RETURNING.
    INSERT INTO @schema@.event (id, @include fields()@)
    VALUES (new_id, @include values_of(emit)@, coalesce(emit.tenant, @include named_tenant()@));
    RETURN new_id;
END
$body$$function$, '<payload>', p), '<headers>', h), '<json>',
            CASE p WHEN 'bytea' THEN 'pg_catalog.convert_from(emit.payload, ''UTF8'')'
                   ELSE 'emit.payload' END || '::pg_catalog.json');
        EXECUTE format('COMMENT ON FUNCTION %s.emit(text, text, anycompatible, %s, %s, text, '
                       'bigint, timestamptz, text) IS %L',
                       '@schema@', p, split_part(h, ' ', 1),
                       'inserts an event in the current transaction; returns its id');
    END LOOP;
END $outbox$;

-- emit_once is emit with a required idempotency key. duplicate: id is that of the first event.
DO $outbox$
DECLARE
    p text;
    h text;
BEGIN
    FOR p, h IN SELECT *
                FROM unnest('{text, json, jsonb, bytea}'::text[]) AS x,
                     unnest('{text, json, jsonb}'::text[]) AS y LOOP
        EXECUTE replace(replace(replace($function$
CREATE OR REPLACE FUNCTION @schema@.emit_once(
    type text, aggregate_type text, aggregate_id anycompatible, payload <payload>,
    headers <headers>, idempotency_key text, version bigint DEFAULT NULL,
    not_before timestamptz DEFAULT NULL, tenant text DEFAULT NULL,
    OUT id uuid, OUT duplicate boolean) LANGUAGE plpgsql VOLATILE AS $body$
DECLARE -- Every name is schema-qualified.
    whose pg_catalog.text := coalesce(tenant, @include named_tenant()@);
    -- The caller is limited to a tenant: such a producer may not choose ids.
    held pg_catalog.bool :=
        NOT pg_catalog.has_column_privilege('@schema@.event'::pg_catalog.regclass, 'id', 'INSERT');
BEGIN
    IF idempotency_key IS NULL THEN
        RAISE EXCEPTION 'idempotency_key: 1 to 1024 bytes, no control character'
            USING ERRCODE = 'check_violation';
    END IF;

    -- In both branches the trigger take_key decides whether the event is stored.
    IF held THEN
        IF NOT pg_catalog.has_column_privilege('@schema@.event'::pg_catalog.regclass,
                                               'idempotency_key', 'INSERT') THEN
            RAISE EXCEPTION 'permission denied for table event'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- The caller acts for its tenant even if the connection does not set one.
        whose := coalesce(tenant, @schema@._acting_for(current_user));
        INSERT INTO @schema@.event (@include fields()@, idempotency_key)
        VALUES (@include values_of(emit_once)@, whose, emit_once.idempotency_key)
        RETURNING event.id INTO id;
    ELSE
        id := @schema@._uuid7();
        INSERT INTO @schema@.event (id, @include fields()@, idempotency_key)
        VALUES (emit_once.id, @include values_of(emit_once)@, whose, emit_once.idempotency_key);
    END IF;

    -- If the key was used before, the trigger left the row out.
    duplicate := NOT FOUND;
    IF duplicate THEN
        SELECT i.event_id INTO id FROM @schema@.idempotency i
        WHERE i.key OPERATOR(pg_catalog.=) emit_once.idempotency_key
          AND i.tenant OPERATOR(pg_catalog.=) coalesce(whose, '');
    END IF;
END
$body$$function$, '<payload>', p), '<headers>', h), '<json>',
            CASE p WHEN 'bytea' THEN 'pg_catalog.convert_from(emit_once.payload, ''UTF8'')'
                   ELSE 'emit_once.payload' END || '::pg_catalog.json');
        EXECUTE format('COMMENT ON FUNCTION %s.emit_once(text, text, anycompatible, %s, %s, text, '
                       'bigint, timestamptz, text) IS %L',
                       '@schema@', p, h,
                       'emit with an idempotency key; returns whether it was used before');
    END LOOP;
END $outbox$;
