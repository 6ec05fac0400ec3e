-- _adopt_columns says which column of an old table is which field of an event. It returns a row for
-- each field that the table has a column for, in a fixed order. The shape ('processed_at',
-- 'debezium', 'auto') gives the usual names. columns ({"type": "kind", "created_at": ""}) gives
-- others; '' means that there is none. In a table without processed_at no row is processed.
--
-- A text in single quotes ({"aggregate_type": "'order'"}) is not a column but a constant, the same
-- for every row. It is returned in literal, which is NULL for a column. typ and category are those
-- of the column's type. It is an error if a column is missing or cannot be that field, except for
-- usual columns that are optional.
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
    f record;
BEGIN
    -- A misspelt field would be ignored silently.
    SELECT string_agg(k, ', ') AS names
    INTO f
    FROM jsonb_object_keys(columns) AS k
    WHERE k NOT IN ('id', 'type', 'aggregate_type', 'aggregate_id', 'payload', 'created_at',
                    'processed_at', 'tenant');
    IF f.names IS NOT NULL THEN
        RAISE EXCEPTION 'no field of an event is called %', f.names
            USING ERRCODE = 'OB004',
                  HINT = 'the fields are id, type, aggregate_type, aggregate_id, payload, '
                         'created_at, processed_at and tenant';
    END IF;

    -- Which shape is it, and which fields must it have? A table that fits both shapes is taken for
    -- one with processed_at.
    IF shape = 'auto' THEN
        shape := CASE WHEN coalesce(columns ->> 'processed_at', 'processed_at') = ANY (has)
                           THEN 'processed_at'
                      WHEN coalesce(columns ->> 'aggregate_type', 'aggregatetype') = ANY (has)
                           OR columns ->> 'aggregate_type' ~ '^''.*''$' THEN 'debezium'
                      WHEN columns ->> 'processed_at' = '' THEN 'processed_at' END;
        IF shape IS NULL THEN
            RAISE EXCEPTION 'table % has neither a column processed_at nor aggregatetype; '
                            'its columns are %', source, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = 'name its shape, and which column is which field';
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
        -- A key consists of both: one without the other was forgotten.
        needed := needed || '{aggregate_type, aggregate_id}';
    END IF;

    -- aggregate_id comes behind aggregate_type: _adopt_values relies on it. named: the caller said
    -- which column it is, so it has to be there even if the field is optional.
    FOR f IN SELECT k AS field, nullif(columns ->> k, '') AS col,
                    columns ->> k IS DISTINCT FROM usual -> shape ->> k AS named
             FROM unnest('{id, type, aggregate_type, aggregate_id, payload, created_at, '
                         'processed_at, tenant}'::text[]) k
    LOOP
        IF f.col IS NULL AND f.field = ANY (needed) THEN
            RAISE EXCEPTION 'no column of table % is known to be the %; its columns are %',
                source, f.field, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = format('name it: %s=COLUMN', f.field);
        END IF;

        -- A constant, unless there really is a column whose name has the quotes.
        IF f.col <> ALL (has) AND f.col ~ '^''.*''$' THEN
            literal := substr(f.col, 2, length(f.col) - 2);
            IF f.field NOT IN ('type', 'aggregate_type', 'tenant') THEN
                RAISE EXCEPTION 'the % is not the same for every row: it has to be a column',
                    f.field
                    USING ERRCODE = 'OB004',
                          HINT = 'type, aggregate_type and tenant may be a text in single quotes';
            END IF;
            IF literal !~ '^[^[:cntrl:][:space:]/]{1,255}$' THEN
                RAISE EXCEPTION '% cannot be the %: 1 to 255 characters without /, white space '
                                'or control characters', f.col, f.field
                    USING ERRCODE = 'OB004';
            END IF;
            field := f.field;
            col := f.col;
            typ := 'text'::regtype;
            category := 'S';
            RETURN NEXT;
            CONTINUE;
        END IF;

        literal := NULL;
        IF f.col <> ALL (has) AND (f.field = ANY (needed) OR f.named) THEN
            RAISE EXCEPTION 'table % has no column %, which would be the %; its columns are %',
                source, quote_ident(f.col), f.field, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = format('name another: %s=COLUMN', f.field);
        END IF;
        SELECT t.oid::regtype, t.typcategory
        INTO typ, category
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = source AND a.attname = f.col AND a.attnum > 0;
        CONTINUE WHEN NOT FOUND; -- a usual column that is optional and not there
        IF (f.field = 'payload' AND category <> 'S'
            AND typ <> ALL ('{json, jsonb, bytea}'::regtype[]))
           OR (f.field = 'created_at'
               AND typ <> ALL ('{timestamptz, timestamp, date}'::regtype[])) THEN
            RAISE EXCEPTION 'column % of table % is %, which cannot be the %',
                quote_ident(f.col), source, typ, f.field
                USING ERRCODE = 'OB004',
                      HINT = CASE f.field
                                 WHEN 'payload' THEN 'a payload is json, jsonb, text or bytea'
                                 ELSE 'do without it: created_at='
                             END;
        END IF;
        field := f.field;
        col := f.col;
        RETURN NEXT;
    END LOOP;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_columns(regclass, text, jsonb) IS
    'which column is which field of an event';
