-- Which columns of an adopted table provide which fields of an event, and how values are converted.

-- Fragments of SQL by which a row r (NEW, or the table's alias) becomes an event:
--
--     texts        the first step: the row's columns, converted to text by output functions
--     expressions  the second step: the columns of an event, computed from those texts (t.*)
--     targets      the names of these columns
--     unprocessed  the condition for rows that are to become events
--     sort         the order of the rows
--     marking, key the id of the table's mark, and the key columns as an array of texts; or NULL
--
-- No expression casts a value of the row's own types: the table's owner could create such a cast,
-- even after the table was adopted, and it would run with the rights of the role that reads the
-- row. None may fail while the table does not change: they run inside the application's INSERT.
CREATE OR REPLACE FUNCTION @schema@._adopt_values(
    source regclass, shape text, columns jsonb, r text,
    OUT texts text, OUT targets text, OUT expressions text, OUT unprocessed text, OUT sort text,
    OUT marking int, OUT key text) LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    c record;
    v text;
    tenant text := 'NULL';
    x text[] := '{}'; -- become texts, targets and expressions
    t text[] := '{}';
    e text[] := '{}';
BEGIN
    unprocessed := 'true';
    FOR c IN SELECT * FROM @schema@._adopt_columns(source, shape, columns) LOOP
        v := format('%s.%I', r, c.col);
        x := x || format('%s AS %I',
                         coalesce(quote_literal(c.literal), @schema@._adopt_text(v, c.typ)),
                         c.field);
        IF c.field = 'id' THEN
            -- An id that is not a UUIDv7 is also kept in the headers. A numeric one gives the best
            -- order.
            t := t || '{id, headers}'::text[];
            e := e || format('coalesce(%s._adopt_id(t.id), %1$s._uuid7())', '@schema@')
                   || format('CASE WHEN %s._adopt_id(t.id)::text ~ ''^.{14}7.{4}[89ab]'' THEN NULL '
                             'WHEN t.id IS NOT NULL THEN json_build_object(''source_id'', '
                             'coalesce(%1$s._adopt_id(t.id)::text, t.id)) END', '@schema@');
            sort := CASE c.category WHEN 'N' THEN v END;
        ELSIF c.field = 'type' THEN
            t := t || c.field;
            e := e || format('%s._as_type(t.type)', '@schema@');
        ELSIF c.field = 'payload' THEN
            -- Text and bytes may not be valid JSON.
            t := t || c.field;
            e := e || format(CASE WHEN c.typ IN ('json'::regtype, 'jsonb'::regtype)
                                  THEN 'coalesce(t.payload::json, ''null'')'
                                  WHEN c.typ = 'bytea'::regtype
                                  THEN 'coalesce(%s._as_json(t.payload::bytea), ''null'')'
                                  ELSE 'coalesce(%s._as_json(t.payload), ''null'')' END,
                             '@schema@');
        ELSIF c.field = 'created_at' THEN
            -- Never ahead of the clock, which would prevent the event from being trimmed.
            t := t || c.field;
            e := e || format('greatest(least(t.created_at::timestamptz, %s._clock()), '
                             'timestamptz ''epoch'')', '@schema@');
            sort := coalesce(sort, format('%s, %s.tableoid, %2$s.ctid', v, r));
        ELSIF c.field = 'processed_at' THEN
            unprocessed := v || CASE c.category WHEN 'B' THEN ' IS NOT TRUE' ELSE ' IS NULL' END;
        ELSIF c.field = 'aggregate_id' THEN
            -- The previous row was the aggregate_type. A key needs both.
            t := t || '{aggregate_type, aggregate_id}'::text[];
            e := e || 'CASE WHEN t.aggregate_id IS NOT NULL THEN t.aggregate_type END'::text
                   || 'CASE WHEN t.aggregate_type IS NOT NULL THEN t.aggregate_id END'::text;
        ELSIF c.field = 'tenant' THEN
            tenant := 't.tenant';
        END IF;
    END LOOP;

    -- The tenant is always set: the connection may act for one even if the table has no tenants.
    t := t || 'tenant'::text;
    e := e || format('%s._adopt_tenant(%s)', '@schema@', tenant);
    texts := array_to_string(x, ', ');
    targets := array_to_string(t, ', ');
    expressions := array_to_string(e, ', ');
    sort := coalesce(sort, format('%s.tableoid, %1$s.ctid', r));
    SELECT m.id,
           (SELECT format('ARRAY[%s]', string_agg(format('pg_catalog.concat(%s.%I)', r, k.name),
                                                  ', ' ORDER BY k.n))
            FROM unnest(m.keys) WITH ORDINALITY k (name, n))
    INTO marking, key
    FROM @schema@.marking m WHERE m.tab = source;
END $outbox$;

-- The type that a domain is based on, directly or through other domains. Others are returned as
-- they are.
CREATE OR REPLACE FUNCTION @schema@._base_type(typ oid) RETURNS oid
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    WHILE (SELECT t.typtype = 'd' FROM pg_catalog.pg_type t WHERE t.oid = typ) LOOP
        SELECT t.typbasetype INTO typ FROM pg_catalog.pg_type t WHERE t.oid = typ;
    END LOOP;
    RETURN typ;
END $outbox$;

-- An SQL expression for a value v of type typ as text. Some of the server's own types have a cast
-- to text that differs from their output function (a boolean is true, not t). Their text is parsed
-- again and cast, which only the server controls.
CREATE OR REPLACE FUNCTION @schema@._adopt_text(v text, typ regtype) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    base oid := @schema@._base_type(typ);
    name text;
    -- concat uses the output function, but turns NULL into ''
    plain text := format('CASE WHEN %s IS NOT NULL THEN pg_catalog.concat(%1$s) END', v);
BEGIN
    -- castmethod f: the cast is a separate function.
    SELECT x.typname INTO name
    FROM pg_catalog.pg_cast k JOIN pg_catalog.pg_type x ON x.oid = k.castsource
    WHERE k.castsource = base
      AND k.casttarget = 'text'::regtype
      AND k.castmethod = 'f'
      AND x.typnamespace = 'pg_catalog'::regnamespace;
    IF FOUND THEN RETURN format('(%s)::pg_catalog.%I::pg_catalog.text', plain, name); END IF;
    RETURN plain;
END $outbox$;

-- The tenant of a row, or the connection's if the row has none. A connection that works for a
-- tenant, or whose role is bound to one, may write for no other tenant: that is an error.
CREATE OR REPLACE FUNCTION @schema@._adopt_tenant(tenant text) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    acting text := @schema@._acting_for(@schema@._caller());
    own text := nullif(acting, '');
BEGIN
    -- acting is NULL if the role is bound to several tenants and names none of them.
    IF acting IS NULL OR own <> tenant THEN
        RAISE EXCEPTION 'this connection works for tenant "%", and cannot emit for tenant "%"',
            own, left(tenant, 100)
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'SET outbox.tenant to the tenant whose rows are written';
    END IF;
    RETURN coalesce(tenant, own);
END $outbox$;

-- The event id for a row with this id; NULL: the event gets a new id. A role that is bound to a
-- tenant may never choose ids: it could choose that of another tenant's event.
CREATE OR REPLACE FUNCTION @schema@._adopt_id(id text) RETURNS uuid
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    who name := @schema@._caller();
BEGIN
    -- As in _acting_for: no query if no role was ever bound, and superusers are exempt.
    IF pg_relation_size('@schema@.held'::regclass) > 0
       AND EXISTS (SELECT 1 FROM @schema@.held h WHERE @schema@._inherits(who, h.role))
       AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r
                       WHERE r.rolname = who AND r.rolsuper) THEN
        RETURN NULL;
    END IF;
    -- Checked first: the cast could fail, and with it the INSERT of the row.
    RETURN CASE WHEN id ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
                THEN id::uuid END;
END $outbox$;

-- Maps the columns of a table to the fields of an event, in a fixed order. The shape
-- ('processed_at', 'debezium', 'auto') determines the usual names, and columns ({"type": "kind",
-- "created_at": ""}) overrides them; '' means none. A string in single quotes is a constant for
-- every row ({"aggregate_type": "'order'"}), returned in literal. typ and category are the column's
-- type. It is an error if a column is missing, unless usual and optional, or has the wrong type.
CREATE OR REPLACE FUNCTION @schema@._adopt_columns(source regclass, shape text, columns jsonb)
RETURNS TABLE (field text, col text, typ regtype, category "char", literal text)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    usual jsonb := '{"processed_at": {"id": "id", "type": "event_type", "payload": "payload",
                                      "created_at": "created_at", "processed_at": "processed_at"},
                     "debezium": {"id": "id", "aggregate_type": "aggregatetype",
                                  "aggregate_id": "aggregateid", "type": "type",
                                  "payload": "payload", "created_at": "created_at"}}';
    needed text[];
    has text[] := ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
                        ORDER BY a.attnum);
    named boolean; -- the caller named the column: it must exist even if the field is optional
    why text;
BEGIN
    -- A misspelt field must not be ignored.
    SELECT string_agg(k, ', ') INTO why FROM jsonb_object_keys(columns) AS k
    WHERE k NOT IN ('id', 'type', 'aggregate_type', 'aggregate_id', 'payload', 'created_at',
                    'processed_at', 'tenant');
    IF why IS NOT NULL THEN
        RAISE EXCEPTION 'an event has no field %', why
            USING ERRCODE = 'OB004',
                  HINT = 'its fields are id, type, aggregate_type, aggregate_id, payload, '
                         'created_at, processed_at and tenant';
    END IF;

    -- The shape, and the fields that it requires. One that fits both counts as processed_at.
    IF shape = 'auto' THEN
        shape := CASE WHEN coalesce(columns ->> 'processed_at', 'processed_at') = ANY (has)
                           THEN 'processed_at'
                      WHEN coalesce(columns ->> 'aggregate_type', 'aggregatetype') = ANY (has)
                           OR columns ->> 'aggregate_type' ~ '^''.*''$' THEN 'debezium'
                      WHEN columns ->> 'processed_at' = '' THEN 'processed_at' END;
        IF shape IS NULL THEN
            RAISE EXCEPTION 'table % has neither a processed_at nor an aggregatetype '
                            'column; its columns are %', source, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = 'name its shape, and the column of each field';
        END IF;
    END IF;
    needed := CASE shape WHEN 'processed_at' THEN '{type, payload, processed_at}'
                         WHEN 'debezium' THEN '{type, payload, aggregate_type, aggregate_id}' END;
    IF needed IS NULL THEN
        RAISE EXCEPTION 'shape "%" is not one of auto, processed_at, debezium', shape
            USING ERRCODE = 'OB004';
    END IF;
    IF columns ->> 'processed_at' = '' THEN
        needed := array_remove(needed, 'processed_at');
    END IF;
    columns := (usual -> shape) || columns;
    IF (columns ? 'aggregate_type') <> (columns ? 'aggregate_id') THEN
        -- A key needs both: the other was forgotten.
        needed := needed || '{aggregate_type, aggregate_id}';
    END IF;

    -- aggregate_id follows aggregate_type, because _adopt_values relies on that order.
    FOR field, col, named IN
        SELECT k, nullif(columns ->> k, ''), columns ->> k IS DISTINCT FROM usual -> shape ->> k
        FROM unnest('{id, type, aggregate_type, aggregate_id, payload, created_at, processed_at, '
                    'tenant}'::text[]) k
    LOOP
        IF col IS NULL AND field = ANY (needed) THEN
            RAISE EXCEPTION 'no column of table % is known for the %; its columns are %',
                source, field, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = format('name one: %s=COLUMN', field);
        END IF;

        -- A constant, unless the table has a column whose name includes the quotes.
        IF col <> ALL (has) AND col ~ '^''.*''$' THEN
            literal := substr(col, 2, length(col) - 2);
            IF field NOT IN ('type', 'aggregate_type', 'tenant') THEN
                RAISE EXCEPTION '%: only type, aggregate_type and tenant may be text in single '
                                'quotes', col USING ERRCODE = 'OB004';
            END IF;
            -- A value that is invalid in an event would fail every INSERT of the application.
            BEGIN
                EXECUTE format('SELECT %L::%s.event_%s', literal, '@schema@', field);
            EXCEPTION WHEN check_violation THEN
                GET STACKED DIAGNOSTICS why = CONSTRAINT_NAME;
                RAISE EXCEPTION '% is not a valid %', col, why USING ERRCODE = 'OB004';
            END;
            typ := 'text'::regtype;
            category := 'S';
            RETURN NEXT;
            CONTINUE;
        END IF;

        literal := NULL;
        IF col <> ALL (has) AND (field = ANY (needed) OR named) THEN
            RAISE EXCEPTION 'table % has no column % to use as the %; its columns are %',
                source, quote_ident(col), field, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = format('name another: %s=COLUMN', field);
        END IF;
        SELECT t.oid::regtype, t.typcategory INTO typ, category
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = source AND a.attname = col AND a.attnum > 0;
        CONTINUE WHEN NOT FOUND; -- an optional column that the table does not have
        IF (field = 'payload' AND category <> 'S'
            AND typ <> ALL ('{json, jsonb, bytea}'::regtype[]))
           OR (field = 'created_at'
               AND typ <> ALL ('{timestamptz, timestamp, date}'::regtype[])) THEN
            RAISE EXCEPTION 'column % of table % is %, which cannot be the %',
                quote_ident(col), source, typ, field
                USING ERRCODE = 'OB004',
                      HINT = CASE field WHEN 'created_at' THEN 'leave it out: created_at='
                                        ELSE 'a payload is json, jsonb, text or bytea' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $outbox$;
