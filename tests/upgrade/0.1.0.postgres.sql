--
-- PostgreSQL database dump
--

\restrict oYAgSRAZGajKck0qPapYgneCONLUz58e3S9V6Hrd2brZF1LXzKa3dbZ1Xqtd2HK

-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: outbox; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA outbox;


--
-- Name: event_headers; Type: DOMAIN; Schema: outbox; Owner: -
--

CREATE DOMAIN outbox.event_headers AS json
	CONSTRAINT event_headers_check CHECK ((json_typeof(VALUE) = 'object'::text));


--
-- Name: event_type; Type: DOMAIN; Schema: outbox; Owner: -
--

CREATE DOMAIN outbox.event_type AS character varying(255)
	CONSTRAINT event_type_check CHECK (((VALUE)::text ~ '^[^[:space:][:cntrl:]]+$'::text));


--
-- Name: adopt(text, text, jsonb, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopt(source text, shape text DEFAULT 'auto'::text, columns jsonb DEFAULT '{}'::jsonb, existing text DEFAULT NULL::text, OUT adopted boolean, OUT copied bigint) RETURNS record
    LANGUAGE plpgsql
    SET lock_timeout TO '5s'
    AS $$
DECLARE
    tab regclass := "outbox".adopt_source(source);
    c pg_catalog.pg_class;
    known text;
    v record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'adopt works in READ COMMITTED, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002';
    END IF;
    IF existing NOT IN ('copy', 'skip') THEN
        RAISE EXCEPTION 'existing "%" is not one of copy, skip', existing USING ERRCODE = 'OB004';
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    copied := 0;
    adopted := "outbox".adopted(tab) IS NULL;
    IF NOT adopted THEN
        RETURN;
    END IF;
    SELECT * INTO c FROM pg_catalog.pg_class x WHERE x.oid = tab;
    known := format('adopted %I.%I', c.relnamespace::regnamespace::text, c.relname);
    IF existing IS NULL AND EXISTS (SELECT 1 FROM "outbox".meta m WHERE m.name = known) THEN
        RAISE EXCEPTION 'table % was adopted before, and which of its rows became events then cannot be told', tab
            USING ERRCODE = 'OB001', HINT = 'say existing copy to make events of all that are not processed, or existing skip '
            'to begin with new ones';
    END IF;
    IF existing = 'skip' THEN
        PERFORM "outbox".adopt_columns(tab, shape, columns);
    ELSE
        SELECT * INTO v FROM "outbox".adopt_values(tab, shape, columns, 's');
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s %s s WHERE %s ORDER BY %s', '"outbox".event', v.targets,
                       v.expressions, CASE c.relkind WHEN 'r' THEN 'ONLY' END, tab, v.unprocessed, v.sort);
        GET DIAGNOSTICS copied = ROW_COUNT;
    END IF;
    PERFORM "outbox".adopt_trigger(tab, shape, columns);
    INSERT INTO "outbox".meta (name, value) VALUES (known, "outbox".clock()::text) ON CONFLICT DO NOTHING;
END
$$;


--
-- Name: FUNCTION adopt(source text, shape text, columns jsonb, existing text, OUT adopted boolean, OUT copied bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopt(source text, shape text, columns jsonb, existing text, OUT adopted boolean, OUT copied bigint) IS 'makes events of the rows of an existing table';


--
-- Name: adopt_columns(regclass, text, jsonb); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopt_columns(source regclass, shape text, columns jsonb) RETURNS TABLE(field text, col text, typ regtype, category "char")
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    usual jsonb := '{"processed_at": {"id": "id", "type": "event_type", "payload": "payload", "created_at": "created_at",
                                      "processed_at": "processed_at"},
                     "debezium": {"id": "id", "aggregate_type": "aggregatetype", "aggregate_id": "aggregateid",
                                  "type": "type", "payload": "payload", "created_at": "created_at"}}';
    needed text[];
    has text[] := ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum);
    f record;
BEGIN
    SELECT string_agg(k, ', ') AS names INTO f FROM jsonb_object_keys(columns) AS k WHERE k NOT IN
        ('id', 'type', 'aggregate_type', 'aggregate_id', 'payload', 'created_at', 'processed_at', 'tenant');
    IF f.names IS NOT NULL THEN
        RAISE EXCEPTION '% is nothing a column can be', f.names USING ERRCODE = 'OB004', HINT =
            'there are id, type, aggregate_type, aggregate_id, payload, created_at, processed_at and tenant';
    END IF;
    IF shape = 'auto' THEN
        shape := CASE WHEN coalesce(columns ->> 'processed_at', 'processed_at') = ANY (has) THEN 'processed_at'
                      WHEN coalesce(columns ->> 'aggregate_type', 'aggregatetype') = ANY (has) THEN 'debezium' END;
        IF shape IS NULL THEN
            RAISE EXCEPTION 'table % has neither a column processed_at nor aggregatetype; its columns are %', source,
                array_to_string(has, ', ') USING ERRCODE = 'OB003', HINT = 'say which shape it has, and which column is what';
        END IF;
    END IF;
    needed := CASE shape WHEN 'processed_at' THEN '{type, payload, processed_at}'
                         WHEN 'debezium' THEN '{type, payload, aggregate_type, aggregate_id}' END;
    IF needed IS NULL THEN
        RAISE EXCEPTION 'shape "%" is not one of auto, processed_at, debezium', shape USING ERRCODE = 'OB004';
    END IF;
    columns := (usual -> shape) || columns;
    IF (columns ? 'aggregate_type') <> (columns ? 'aggregate_id') THEN
        needed := needed || '{aggregate_type, aggregate_id}';
    END IF;
    FOR f IN SELECT k AS field, nullif(columns ->> k, '') AS col,
                    columns ->> k IS DISTINCT FROM usual -> shape ->> k AS named
             FROM unnest('{id, type, aggregate_type, aggregate_id, payload, created_at, processed_at, tenant}'::text[]) k
    LOOP
        IF f.col IS NULL AND f.field = ANY (needed) THEN
            RAISE EXCEPTION 'which column of table % is the % has to be said; its columns are %', source, f.field,
                array_to_string(has, ', ') USING ERRCODE = 'OB003', HINT = format('say %s=COLUMN', f.field);
        END IF;
        IF f.col <> ALL (has) AND (f.field = ANY (needed) OR f.named) THEN
            RAISE EXCEPTION 'table % has no column %, which would be the %; its columns are %', source, quote_ident(f.col),
                f.field, array_to_string(has, ', ')
                USING ERRCODE = 'OB003', HINT = format('name another: %s=COLUMN', f.field);
        END IF;
        SELECT t.oid::regtype, t.typcategory INTO typ, category
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = source AND a.attname = f.col AND a.attnum > 0;
        CONTINUE WHEN NOT FOUND;
        IF (f.field = 'payload' AND category <> 'S' AND typ <> ALL ('{json, jsonb, bytea}'::regtype[]))
           OR (f.field = 'created_at' AND typ <> ALL ('{timestamptz, timestamp, date}'::regtype[])) THEN
            RAISE EXCEPTION 'column % of table % is %, which cannot be the %', quote_ident(f.col), source, typ, f.field
                USING ERRCODE = 'OB004', HINT = CASE f.field WHEN 'payload' THEN 'a payload is json, jsonb, text or bytea'
                                                ELSE 'do without it: created_at=' END;
        END IF;
        field := f.field;
        col := f.col;
        RETURN NEXT;
    END LOOP;
END
$$;


--
-- Name: FUNCTION adopt_columns(source regclass, shape text, columns jsonb); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopt_columns(source regclass, shape text, columns jsonb) IS 'which column is what of an event';


--
-- Name: adopt_source(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopt_source(source text) RETURNS regclass
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    found regclass;
BEGIN
    BEGIN
        found := to_regclass(source);
    EXCEPTION WHEN invalid_name OR syntax_error OR feature_not_supported THEN
        NULL;
    END;
    found := coalesce(found, to_regclass(quote_ident(source)));
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no table %', source
            USING ERRCODE = 'OB003', HINT = 'write it as SQL does, with its schema: shop."Outbox"';
    END IF;
    IF found = '"outbox".event'::regclass
       OR (SELECT c.relkind NOT IN ('r', 'p') FROM pg_catalog.pg_class c WHERE c.oid = found) THEN
        RAISE EXCEPTION '% is no table that can be adopted', found USING ERRCODE = 'OB004';
    END IF;
    RETURN found;
END
$$;


--
-- Name: FUNCTION adopt_source(source text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopt_source(source text) IS 'the table to adopt';


--
-- Name: adopt_trigger(regclass, text, jsonb); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopt_trigger(tab regclass, shape text, columns jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v record;
    name text := 'adopted_' || tab::oid;
    f text;
    owner text := (SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
                   WHERE c.oid = '"outbox".event'::regclass);
BEGIN
    WHILE to_regprocedure(format('%s.%I()', '"outbox"', name)) IS NOT NULL LOOP
        name := name || '_'; -- of a table that had this oid where a dump came from
    END LOOP;
    f := format('%s.%I()', '"outbox"', name);
    SELECT * INTO v FROM "outbox".adopt_values(tab, shape, columns, 'NEW');
    EXECUTE format('CREATE FUNCTION %s RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', f,
                   format(E'BEGIN\n    INSERT INTO %s (%s) VALUES (%s);\n    RETURN NULL;\nEND', '"outbox".event', v.targets,
                          v.expressions));
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, 'makes events of the rows of ' || tab);
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION %s', name, tab,
                   v.unprocessed, f);
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
    END IF;
END
$$;


--
-- Name: FUNCTION adopt_trigger(tab regclass, shape text, columns jsonb); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopt_trigger(tab regclass, shape text, columns jsonb) IS 'makes the trigger of an adopted table';


--
-- Name: adopt_values(regclass, text, jsonb, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopt_values(source regclass, shape text, columns jsonb, r text, OUT targets text, OUT expressions text, OUT unprocessed text, OUT sort text) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $_$
DECLARE
    c record;
    v text;
    aggregate_type text;
    t text[] := '{}';
    e text[] := '{}';
BEGIN
    unprocessed := 'true';
    FOR c IN SELECT * FROM "outbox".adopt_columns(source, shape, columns) LOOP
        v := format('%s.%I', r, c.col);
        IF c.field = 'id' THEN
            t := t || '{id, headers}'::text[];
            e := e || format('coalesce(%s.as_uuid(%s::text), %1$s.uuid7())', '"outbox"', v)
                   || format('CASE WHEN %s IS NOT NULL AND %s.as_uuid(%1$s::text) IS NULL THEN '
                             'json_build_object(''source_id'', %1$s::text) END', v, '"outbox"');
            sort := CASE c.category WHEN 'N' THEN v END;
        ELSIF c.field = 'type' THEN
            t := t || c.field;
            e := e || format('%s.as_type(%s::text)', '"outbox"', v);
        ELSIF c.field = 'payload' THEN
            t := t || c.field;
            e := e || format(CASE WHEN c.typ = 'json'::regtype THEN 'coalesce(%1$s, ''null'')'
                                  WHEN c.typ = 'jsonb'::regtype THEN 'coalesce(%1$s::json, ''null'')'
                                  WHEN c.typ = 'bytea'::regtype THEN 'coalesce(%2$s.as_json(%1$s), ''null'')'
                                  ELSE 'coalesce(%2$s.as_json(%1$s::text), ''null'')' END, v, '"outbox"');
        ELSIF c.field = 'created_at' THEN -- never ahead of the clock: that would keep it from being trimmed
            t := t || c.field;
            e := e || format('greatest(least(%s::timestamptz, %s.clock()), timestamptz ''epoch'')', v, '"outbox"');
            sort := coalesce(sort, format('%s, %s.tableoid, %2$s.ctid', v, r));
        ELSIF c.field = 'processed_at' THEN
            unprocessed := v || CASE c.category WHEN 'B' THEN ' IS NOT TRUE' ELSE ' IS NULL' END;
        ELSIF c.field = 'aggregate_type' THEN
            aggregate_type := v;
        ELSIF c.field = 'aggregate_id' THEN -- comes behind its type, and one without the other is none
            t := t || '{aggregate_type, aggregate_id}'::text[];
            e := e || format('CASE WHEN %s IS NOT NULL THEN %s::text END', v, aggregate_type)
                   || format('CASE WHEN %2$s IS NOT NULL THEN %1$s::text END', v, aggregate_type);
        ELSIF c.field = 'tenant' THEN
            t := t || c.field;
            e := e || (v || '::text');
        END IF;
    END LOOP;
    targets := array_to_string(t, ', ');
    expressions := array_to_string(e, ', ');
    sort := coalesce(sort, format('%s.tableoid, %1$s.ctid', r));
END
$_$;


--
-- Name: FUNCTION adopt_values(source regclass, shape text, columns jsonb, r text, OUT targets text, OUT expressions text, OUT unprocessed text, OUT sort text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopt_values(source regclass, shape text, columns jsonb, r text, OUT targets text, OUT expressions text, OUT unprocessed text, OUT sort text) IS 'how a row becomes an event';


--
-- Name: adopted(regclass); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopted(tab regclass) RETURNS name
    LANGUAGE sql STABLE
    AS $_$
    SELECT t.tgname FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = $1 AND p.pronamespace = '"outbox"'::regnamespace AND p.proname LIKE 'adopted\_%'
$_$;


--
-- Name: FUNCTION adopted(tab regclass); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopted(tab regclass) IS 'the trigger of an adopted table';


--
-- Name: adopted_16587(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.adopted_16587() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$BEGIN
    INSERT INTO "outbox".event (id, headers, type, aggregate_type, aggregate_id, payload) VALUES (coalesce("outbox".as_uuid(NEW.id::text), "outbox".uuid7()), CASE WHEN NEW.id IS NOT NULL AND "outbox".as_uuid(NEW.id::text) IS NULL THEN json_build_object('source_id', NEW.id::text) END, "outbox".as_type(NEW.type::text), CASE WHEN NEW.aggregateid IS NOT NULL THEN NEW.aggregatetype::text END, CASE WHEN NEW.aggregatetype IS NOT NULL THEN NEW.aggregateid::text END, coalesce(NEW.payload::json, 'null'));
    RETURN NULL;
END$$;


--
-- Name: FUNCTION adopted_16587(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.adopted_16587() IS 'makes events of the rows of shop_outbox';


--
-- Name: allow(text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.allow(part text, role text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    r record;
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role USING ERRCODE = 'OB003', HINT = 'make it with CREATE ROLE';
    END IF;
    FOR r IN SELECT * FROM "outbox".rights(part) LOOP
        EXECUTE format('GRANT %s ON %s %s TO %I', r.privilege, r.kind, r.object, role);
    END LOOP;
END
$$;


--
-- Name: FUNCTION allow(part text, role text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.allow(part text, role text) IS 'gives a role its part: producer, consumer or operator';


--
-- Name: as_json(bytea); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.as_json(value bytea) RETURNS json
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $$
BEGIN
    RETURN "outbox".as_json(convert_from(value, 'UTF8'));
EXCEPTION WHEN data_exception THEN
    RETURN to_json(replace(encode(value, 'base64'), E'\n', ''));
END
$$;


--
-- Name: FUNCTION as_json(value bytea); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.as_json(value bytea) IS 'bytes as a payload';


--
-- Name: as_json(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.as_json(value text) RETURNS json
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $$
BEGIN
    RETURN value::json;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN to_json(value);
END
$$;


--
-- Name: FUNCTION as_json(value text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.as_json(value text) IS 'text as a payload';


--
-- Name: as_type(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.as_type(value text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT coalesce(nullif(left(regexp_replace($1, '[[:space:][:cntrl:]]+', '_', 'g'), 255), ''), 'unknown')
$_$;


--
-- Name: FUNCTION as_type(value text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.as_type(value text) IS 'text as an event type';


--
-- Name: as_uuid(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.as_uuid(value text) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE WHEN $1 ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN $1::uuid END
$_$;


--
-- Name: FUNCTION as_uuid(value text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.as_uuid(value text) IS 'text as an event id, if it can be one';


--
-- Name: bell_channel(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_channel() RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 'outbox_' || substr(md5('"outbox"'), 1, 16) $$;


--
-- Name: FUNCTION bell_channel(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_channel() IS 'the channel that wakes sleeping workers';


--
-- Name: bell_key(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_key() RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT hashtextextended('"outbox" bell', 0) $$;


--
-- Name: FUNCTION bell_key(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_key() IS 'the advisory lock a sleeping worker holds';


--
-- Name: bell_ring(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_ring() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF "outbox".bell_works() THEN
        PERFORM pg_notify("outbox".bell_channel(), '');
    END IF;
END
$$;


--
-- Name: FUNCTION bell_ring(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_ring() IS 'wakes whoever sleeps';


--
-- Name: bell_sleep(boolean); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_sleep(listening boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    k bigint := "outbox".bell_key();
BEGIN
    IF pg_try_advisory_lock(k) THEN
        IF listening THEN
            PERFORM pg_advisory_unlock_shared(k # 1);
        END IF;
        RETURN 'holder';
    END IF;
    IF listening OR pg_try_advisory_lock_shared(k # 1) THEN
        -- Only now: one that gets up after this will find the second lock taken.
        IF EXISTS (SELECT 1 FROM pg_catalog.pg_locks x WHERE x.locktype = 'advisory' AND x.objsubid = 1 AND x.granted
                   AND x.mode = 'ExclusiveLock' AND x.classid = ((k >> 32) & 4294967295)::oid AND x.objid = (k & 4294967295)::oid
                   AND x.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())) THEN
            RETURN 'listener';
        END IF;
        PERFORM pg_advisory_unlock_shared(k # 1);
    END IF;
    RETURN 'busy';
END
$$;


--
-- Name: FUNCTION bell_sleep(listening boolean); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_sleep(listening boolean) IS 'a worker goes to sleep';


--
-- Name: bell_wake(boolean); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_wake(holder boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    k bigint := "outbox".bell_key();
BEGIN
    IF NOT holder THEN
        PERFORM pg_advisory_unlock_shared(k # 1);
        RETURN;
    END IF;
    PERFORM pg_advisory_unlock(k);
    IF pg_try_advisory_lock(k # 1) THEN
        PERFORM pg_advisory_unlock(k # 1);
    ELSE
        PERFORM pg_notify("outbox".bell_channel(), '');
    END IF;
END
$$;


--
-- Name: FUNCTION bell_wake(holder boolean); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_wake(holder boolean) IS 'a worker gets up';


--
-- Name: bell_works(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bell_works() RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE coalesce(current_setting('outbox.doorbell', true), '')
               WHEN 'on' THEN true WHEN 'off' THEN false
               ELSE current_setting('max_prepared_transactions') = '0' END
$$;


--
-- Name: FUNCTION bell_works(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bell_works() IS 'whether an emit wakes a sleeping worker';


--
-- Name: bury(text, bigint, integer, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.bury(consumer text, seq bigint, attempts integer, error text) RETURNS void
    LANGUAGE plpgsql
    AS $_$
BEGIN
    INSERT INTO "outbox".dead AS d (consumer, seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant,
                                    not_before, created_at, attempts, error, dead_at)
    SELECT $1, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant,
           e.not_before, e.created_at, $3, $4, "outbox".clock()
    FROM "outbox".event e WHERE e.seq = $2
    ON CONFLICT ON CONSTRAINT dead_pkey DO UPDATE SET attempts = excluded.attempts, error = excluded.error,
        dead_at = excluded.dead_at, retrying = false;
    -- A letter sent back after its event was trimmed has only its own row.
    UPDATE "outbox".dead d SET attempts = $3, error = $4, dead_at = "outbox".clock(), retrying = false
    WHERE d.consumer = $1 AND d.seq = $2 AND d.retrying;
    DELETE FROM "outbox".parked p WHERE p.consumer = $1 AND p.seq = $2;
END
$_$;


--
-- Name: FUNCTION bury(consumer text, seq bigint, attempts integer, error text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.bury(consumer text, seq bigint, attempts integer, error text) IS 'makes a dead letter';


--
-- Name: clock(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.clock() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT greatest(statement_timestamp(), transaction_timestamp())$$;


--
-- Name: FUNCTION clock(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.clock() IS 'the clock leases and retries go by';


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: consumer; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.consumer (
    name text NOT NULL,
    events text NOT NULL,
    type_like text[],
    predicate text NOT NULL,
    ordering text NOT NULL,
    lanes integer NOT NULL,
    retry text NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT outbox.clock() NOT NULL,
    report text,
    report_at timestamp with time zone,
    tenant text DEFAULT COALESCE(current_setting('outbox.tenant'::text, true), ''::text) NOT NULL,
    CONSTRAINT consumer_lanes_check CHECK (((lanes >= 1) AND (lanes <= 64))),
    CONSTRAINT consumer_ordering_check CHECK ((ordering = ANY (ARRAY['none'::text, 'key'::text, 'global'::text])))
);


--
-- Name: TABLE consumer; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.consumer IS 'who reads the outbox';


--
-- Name: check_tenant(outbox.consumer); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.check_tenant(c outbox.consumer) RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    tenant text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    IF c.tenant <> tenant THEN
        RAISE EXCEPTION 'consumer "%" belongs to %, this connection to %', c.name,
            CASE c.tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', c.tenant) END,
            CASE tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', tenant) END
            USING ERRCODE = 'OB004', HINT = 'give the consumer another name, or say ?tenant=NAME in the store''s URL';
    END IF;
    IF tenant <> '' AND NOT row_security_active('"outbox".event') THEN
        RAISE EXCEPTION 'role "%" is above row-level security: consumer "%" would get every tenant''s events', current_user,
            c.name USING ERRCODE = 'OB004', HINT = 'connect as another role';
    END IF;
END
$$;


--
-- Name: FUNCTION check_tenant(c outbox.consumer); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.check_tenant(c outbox.consumer) IS 'refuses a consumer of another tenant';


--
-- Name: claim(text, text, integer, bigint, integer); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.claim(consumer text, worker text, max_events integer DEFAULT 100, lease_ms bigint DEFAULT 30000, max_attempts integer DEFAULT 5) RETURNS TABLE(epoch bigint, seq bigint, id uuid, type text, aggregate_type text, aggregate_id text, version bigint, payload json, headers json, tenant text, created_at timestamp with time zone, attempts integer, held boolean, delayed boolean)
    LANGUAGE plpgsql
    AS $$
DECLARE
    t record;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'a claim inside a transaction that has written would not be durable: refused'
            USING ERRCODE = 'OB002', HINT = 'COMMIT first, and call claim in a transaction of its own';
    END IF;
    IF (max_events BETWEEN 1 AND 100000 AND lease_ms BETWEEN 1 AND 86400000 AND max_attempts > 0 AND worker <> '') IS NOT TRUE THEN
        RAISE EXCEPTION 'claim takes a worker, max_events of 1 to 100000, lease_ms of 1 to 86400000, max_attempts of 1 or more' USING ERRCODE = 'OB004';
    END IF;
    FOR turn IN 1 .. 100 LOOP
        SELECT * INTO t FROM "outbox".turn(claim.consumer, worker, 0, 0, '[]', 0, max_events, lease_ms, max_attempts, 2,
            true, random() < 0.01, (random() * 63)::int, '{}',
            NULL, NULL, NULL, NULL, -1, NULL, 0, 0, 0);
        EXIT WHEN t.n > 0 OR NOT t.skipped;
    END LOOP;
    IF t.n = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT t.epoch, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers,
                        e.tenant, e.created_at, e.attempts, coalesce(e.seq = ANY (t.held), false),
                        coalesce(e.not_before > "outbox".clock(), false)
                 FROM "outbox".claimed(claim.consumer, t.epoch) e ORDER BY e.seq;
END
$$;


--
-- Name: FUNCTION claim(consumer text, worker text, max_events integer, lease_ms bigint, max_attempts integer); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.claim(consumer text, worker text, max_events integer, lease_ms bigint, max_attempts integer) IS 'leases events to a worker';


--
-- Name: lane; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.lane (
    consumer text NOT NULL,
    lane integer NOT NULL,
    version bigint NOT NULL,
    seen pg_snapshot NOT NULL,
    floor bigint NOT NULL,
    target pg_snapshot,
    next_floor bigint,
    window_end bigint,
    pos bigint NOT NULL,
    claims_from bigint NOT NULL,
    delivered bigint NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_cost_delay='0');


--
-- Name: TABLE lane; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.lane IS 'how far each lane of each consumer has got; the highest version counts';


--
-- Name: claim_fresh(outbox.consumer, outbox.lane, text, integer, interval, timestamp with time zone, bigint, integer, text, bigint, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.claim_fresh(c outbox.consumer, INOUT l outbox.lane, owner text, max_events integer, lease interval, now timestamp with time zone, head bigint, INOUT n integer, ahead_target text, ahead_from bigint, ahead_to bigint, OUT changed boolean, OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    first bigint;
    last bigint;
    opened boolean;
    named pg_snapshot;
    span bigint := max_events::bigint * c.lanes;
BEGIN
    changed := false;
    skipped := false;
    IF ahead_to > 0 AND l.pos = ahead_from AND l.target::text = ahead_target THEN
        from_seq := l.pos;
        l.pos := ahead_to;
        changed := true;
        IF n = 0 THEN
            skipped := true;
            RETURN;
        END IF;
    ELSE
        n := 0;
        FOR turn IN 1 .. 10 LOOP
            opened := l.target IS NULL;
            IF opened THEN
                -- In this order, each with a snapshot of its own: what the target neither shows nor names as running
                -- has a seq past next_floor; what it shows is not past window_end.
                l.next_floor := coalesce(head, l.floor);
                l.target := pg_current_snapshot();
                l.window_end := coalesce(pg_sequence_last_value('"outbox".event_seq_seq'), 0);
                l.pos := 0;
            END IF;
            first := "outbox".window_next(l.seen, l.floor, l.target, l.pos, l.window_end);
            -- An idle consumer is not written for each look at it: only if there is something to forget.
            EXIT WHEN first IS NULL AND opened AND NOT changed AND l.floor >= l.next_floor;
            IF opened THEN -- only now: it takes a transaction number
                named := "outbox".name_running(l.target);
                l.target := coalesce(named, l.target);
                l.next_floor := CASE WHEN named IS NULL THEN l.floor ELSE l.next_floor END; -- still right, only slower
            END IF;
            IF first IS NULL THEN -- through
                l.seen := l.target;
                -- One that was told to start further ahead than the head stays there.
                l.floor := greatest(l.floor, l.next_floor);
                l.target := NULL;
                l.pos := 0;
                changed := true;
                EXIT WHEN opened;
                CONTINUE;
            END IF;
            last := least(first + span - 1, l.window_end);
            SELECT count(*), max(x.seq) INTO n, first
            FROM (SELECT w.seq FROM "outbox".window_events(l.seen, l.floor, l.target, l.pos, last) w
                  WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
                    AND "outbox".lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id) = l.lane
                  ORDER BY w.seq LIMIT max_events) x;
            from_seq := l.pos;
            l.pos := CASE WHEN n < max_events THEN last ELSE first END;
            changed := true;
            EXIT WHEN n > 0;
            span := least(span * 4, 100000);
            skipped := turn = 10;
        END LOOP;
    END IF;
    IF n = 0 THEN
        RETURN;
    END IF;
    skipped := false;
    epoch := "outbox".next_epoch();
    INSERT INTO "outbox".claim VALUES (c.name, epoch, l.lane, l.seen, l.floor, l.target, l.next_floor, l.window_end, from_seq,
                                       l.pos, owner, now + lease, lease);
END
$$;


--
-- Name: FUNCTION claim_fresh(c outbox.consumer, INOUT l outbox.lane, owner text, max_events integer, lease interval, now timestamp with time zone, head bigint, INOUT n integer, ahead_target text, ahead_from bigint, ahead_to bigint, OUT changed boolean, OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.claim_fresh(c outbox.consumer, INOUT l outbox.lane, owner text, max_events integer, lease interval, now timestamp with time zone, head bigint, INOUT n integer, ahead_target text, ahead_from bigint, ahead_to bigint, OUT changed boolean, OUT skipped boolean, OUT epoch bigint, OUT from_seq bigint) IS 'leases the next events of a lane';


--
-- Name: claim_parked(outbox.consumer, text, integer, interval, integer, boolean, timestamp with time zone); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.claim_parked(c outbox.consumer, owner text, max_events integer, lease interval, careful_mode integer, pull_in boolean, now timestamp with time zone, OUT epoch bigint, OUT n integer, OUT careful boolean, OUT careful_due boolean, OUT due timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    h record;
    m int;
    e bigint;
BEGIN
    n := 0;
    careful := false;
    careful_due := false;
    IF careful_mode = 0 THEN
        careful_due := EXISTS (SELECT 1 FROM "outbox".parked p WHERE p.consumer = c.name AND p.claim IS NULL
                               AND p.due_at <= now AND p.careful);
    END IF;
    FOR turn IN 1 .. 2 LOOP
        SELECT p.due_at INTO due FROM "outbox".parked p WHERE p.consumer = c.name AND p.claim IS NULL
          AND p.due_at IS NOT NULL AND (careful_mode > 0 OR NOT p.careful) ORDER BY p.due_at LIMIT 1;
        EXIT WHEN due IS NULL OR due <= now OR NOT pull_in OR turn = 2;
        UPDATE "outbox".parked p SET due_at = now + p.wait WHERE p.consumer = c.name AND p.claim IS NULL AND NOT p.delayed
           AND p.due_at > now + p.wait;
        EXIT WHEN NOT FOUND;
    END LOOP;
    IF due IS NULL OR due > now THEN
        RETURN;
    END IF;
    FOR h IN SELECT p.seq, p.key, p.careful, p.key <> 0 AND EXISTS (SELECT 1 FROM "outbox".parked b
                        WHERE b.consumer = c.name AND b.key = p.key AND b.seq < p.seq) AS behind
             FROM "outbox".parked p
             WHERE p.consumer = c.name AND p.claim IS NULL AND p.due_at <= now AND (careful_mode > 0 OR NOT p.careful)
             ORDER BY p.due_at, p.seq LIMIT max_events LOOP
        IF h.behind THEN -- due, but another of its key was parked before it since: it goes behind that
            UPDATE "outbox".parked p SET due_at = NULL WHERE p.consumer = c.name AND p.seq = h.seq AND p.claim IS NULL;
            CONTINUE;
        END IF;
        careful_due := careful_due OR (h.careful AND careful_mode = 1 AND n = 0);
        EXIT WHEN n >= max_events OR (h.careful AND (n > 0 OR careful_mode = 1));
        e := coalesce(e, "outbox".next_epoch());
        UPDATE "outbox".parked p SET claim = e, attempts = p.attempts + p.careful::int
        WHERE p.consumer = c.name AND p.seq = h.seq;
        n := n + 1;
        careful := h.careful;
        EXIT WHEN h.careful;
        IF h.key <> 0 AND n < max_events THEN
            UPDATE "outbox".parked p SET claim = e
            FROM (SELECT f.seq FROM (SELECT x.seq, bool_or(x.careful OR x.claim IS NOT NULL OR x.due_at IS NOT NULL)
                                                OVER (ORDER BY x.seq) AS stop
                                     FROM "outbox".parked x WHERE x.consumer = c.name AND x.key = h.key AND x.seq > h.seq
                                     ORDER BY x.seq LIMIT max_events - n) f
                  WHERE NOT f.stop) t
            WHERE p.consumer = c.name AND p.seq = t.seq;
            GET DIAGNOSTICS m = ROW_COUNT;
            n := n + m;
        END IF;
    END LOOP;
    IF e IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO "outbox".claim (consumer, epoch, lane, floor, from_seq, to_seq, owner, locked_until, lease)
    VALUES (c.name, e, -1, 0, 0, 0, claim_parked.owner, now + claim_parked.lease, claim_parked.lease);
    epoch := e;
END
$$;


--
-- Name: FUNCTION claim_parked(c outbox.consumer, owner text, max_events integer, lease interval, careful_mode integer, pull_in boolean, now timestamp with time zone, OUT epoch bigint, OUT n integer, OUT careful boolean, OUT careful_due boolean, OUT due timestamp with time zone); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.claim_parked(c outbox.consumer, owner text, max_events integer, lease interval, careful_mode integer, pull_in boolean, now timestamp with time zone, OUT epoch bigint, OUT n integer, OUT careful boolean, OUT careful_due boolean, OUT due timestamp with time zone) IS 'leases parked events that are due';


--
-- Name: claimed(text, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.claimed(consumer text, epoch bigint) RETURNS TABLE(seq bigint, id uuid, type text, aggregate_type text, aggregate_id text, version bigint, payload json, headers json, tenant text, created_at timestamp with time zone, not_before timestamp with time zone, attempts integer)
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $_$
    SELECT e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant, e.created_at,
           e.not_before, 0
    FROM "outbox".claim k, "outbox".consumer c,
         LATERAL "outbox".window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq) e
    WHERE k.consumer = $1 AND k.epoch = $2 AND k.lane >= 0 AND c.name = $1
      AND (c.type_like IS NULL OR e.type LIKE ANY (c.type_like))
      AND "outbox".lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id) = k.lane
    UNION ALL
    SELECT p.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers, e.tenant, e.created_at,
           e.not_before, p.attempts - p.careful::int
    FROM "outbox".parked p, LATERAL (
         SELECT i.seq, i.id, i.type, i.aggregate_type, i.aggregate_id, i.version, i.payload, i.headers, i.tenant,
                i.created_at, i.not_before FROM "outbox".event i WHERE i.seq = p.seq
         UNION ALL
         SELECT d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.version, d.payload, d.headers, d.tenant,
                d.created_at, d.not_before FROM "outbox".dead d WHERE d.consumer = $1 AND d.seq = p.seq
         LIMIT 1) e -- one that was trimmed was a dead letter, which is kept whole
    WHERE p.consumer = $1 AND p.claim = $2
$_$;


--
-- Name: FUNCTION claimed(consumer text, epoch bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.claimed(consumer text, epoch bigint) IS 'the events of a claim';


--
-- Name: disallow(text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.disallow(part text, role text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    had text[] := ARRAY(SELECT "outbox".parts(role));
    r record;
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role USING ERRCODE = 'OB003';
    END IF;
    IF part <> ALL (had) THEN
        RETURN false;
    END IF;
    FOR r IN SELECT * FROM "outbox".rights(part) x WHERE x.kind <> 'SCHEMA' LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %I', r.kind, r.object, role);
    END LOOP;
    PERFORM "outbox".allow(h, role) FROM unnest(had) AS h WHERE h <> part;
    -- The schema may be the application's as well: it stays open while the role has anything in it.
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) x, pg_catalog.pg_roles g
                   WHERE c.relnamespace = '"outbox"'::regnamespace AND g.rolname = role AND x.grantee = g.oid)
       AND cardinality(had) = 1 THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', '"outbox"', role);
    END IF;
    RETURN true;
END
$$;


--
-- Name: FUNCTION disallow(part text, role text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.disallow(part text, role text) IS 'takes a part from a role';


--
-- Name: emit(text, text, text, json, json, text, bigint, timestamp with time zone, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.emit(type text, aggregate_type text, aggregate_id text, payload json, headers json DEFAULT NULL::json, idempotency_key text DEFAULT NULL::text, version bigint DEFAULT NULL::bigint, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone, tenant text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    new_id uuid := "outbox".uuid7();
BEGIN
    IF idempotency_key IS NOT NULL THEN
        SELECT e.id INTO new_id FROM "outbox".emit_once(type, aggregate_type, aggregate_id, payload, headers,
                                                        idempotency_key, version, not_before, tenant) e;
        RETURN new_id;
    END IF;
    INSERT INTO "outbox".event (id, type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant)
    VALUES (new_id, emit.type, emit.aggregate_type, emit.aggregate_id, emit.payload, emit.headers, emit.version,
            emit.not_before, coalesce(emit.tenant, nullif(current_setting('outbox.tenant', true), '')));
    RETURN new_id;
END
$$;


--
-- Name: FUNCTION emit(type text, aggregate_type text, aggregate_id text, payload json, headers json, idempotency_key text, version bigint, not_before timestamp with time zone, tenant text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.emit(type text, aggregate_type text, aggregate_id text, payload json, headers json, idempotency_key text, version bigint, not_before timestamp with time zone, tenant text) IS 'writes an event in the current transaction; returns its id';


--
-- Name: emit_once(text, text, text, json, json, text, bigint, timestamp with time zone, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.emit_once(type text, aggregate_type text, aggregate_id text, payload json, headers json, idempotency_key text, version bigint DEFAULT NULL::bigint, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone, tenant text DEFAULT NULL::text, OUT id uuid, OUT duplicate boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    content bigint := hashtextextended(concat_ws(chr(1), type, coalesce(aggregate_type, chr(2)),
                                                 coalesce(aggregate_id, chr(2)), payload::text), 0);
    whose text := coalesce(tenant, nullif(current_setting('outbox.tenant', true), ''));
    known record;
BEGIN
    -- Waits for a transaction that is about to use the same key.
    id := "outbox".uuid7();
    INSERT INTO "outbox".idempotency (tenant, key, event_id, hash)
    VALUES (coalesce(whose, ''), emit_once.idempotency_key, emit_once.id, content) ON CONFLICT DO NOTHING;
    duplicate := NOT FOUND;
    IF duplicate THEN
        SELECT i.event_id, i.hash INTO known FROM "outbox".idempotency i WHERE i.key = emit_once.idempotency_key
           AND i.tenant = coalesce(whose, '');
        IF known.hash IS DISTINCT FROM content THEN
            RAISE EXCEPTION 'idempotency key "%" was used before with another type, aggregate or payload (event %)',
                left(idempotency_key, 100), known.event_id USING ERRCODE = 'OB001';
        END IF;
        id := known.event_id;
        RETURN;
    END IF;
    INSERT INTO "outbox".event (id, type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant)
    VALUES (emit_once.id, emit_once.type, emit_once.aggregate_type, emit_once.aggregate_id, emit_once.payload,
            emit_once.headers, emit_once.version, emit_once.not_before, whose);
END
$$;


--
-- Name: FUNCTION emit_once(type text, aggregate_type text, aggregate_id text, payload json, headers json, idempotency_key text, version bigint, not_before timestamp with time zone, tenant text, OUT id uuid, OUT duplicate boolean); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.emit_once(type text, aggregate_type text, aggregate_id text, payload json, headers json, idempotency_key text, version bigint, not_before timestamp with time zone, tenant text, OUT id uuid, OUT duplicate boolean) IS 'emit with an idempotency key; says whether it was known';


--
-- Name: extend(text, text, bigint, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.extend(consumer text, worker text, epoch bigint, lease_ms bigint DEFAULT 30000) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF (lease_ms BETWEEN 1 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION 'lease_ms is 1 to 86400000' USING ERRCODE = 'OB004';
    END IF;
    PERFORM "outbox".lock_consumer(consumer); -- who is about to take it over must not miss this
    UPDATE "outbox".claim x SET locked_until = "outbox".clock() + extend.lease_ms * interval '1 millisecond',
        lease = extend.lease_ms * interval '1 millisecond'
    WHERE x.consumer = extend.consumer AND x.epoch = extend.epoch AND x.owner = extend.worker
      AND x.locked_until > "outbox".clock();
    RETURN FOUND;
END
$$;


--
-- Name: FUNCTION extend(consumer text, worker text, epoch bigint, lease_ms bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.extend(consumer text, worker text, epoch bigint, lease_ms bigint) IS 'keeps a claim';


--
-- Name: floors(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.floors() RETURNS TABLE(consumer text, paused boolean, floor bigint, pin text)
    LANGUAGE sql STABLE
    AS $$
    SELECT DISTINCT ON (f.consumer) f.consumer, f.paused, f.floor, f.pin FROM (
        SELECT c.name AS consumer, c.paused,
               CASE WHEN l.target IS NULL THEN l.floor ELSE greatest(l.floor, l.pos) END AS floor, 'position' AS pin, 2 AS rank
        FROM "outbox".consumer c, LATERAL "outbox".lanes(c.name, c.lanes) l WHERE l.lane >= 0
        UNION ALL
        SELECT c.name, c.paused, greatest(k.floor, k.from_seq), 'claim', 1
        FROM "outbox".consumer c JOIN "outbox".claim k ON k.consumer = c.name AND k.lane >= 0
        UNION ALL
        SELECT c.name, c.paused, p.seq - 1, 'parked', 0
        FROM "outbox".consumer c, LATERAL (SELECT min(x.seq) AS seq FROM "outbox".parked x WHERE x.consumer = c.name AND NOT EXISTS
            (SELECT 1 FROM "outbox".dead d WHERE d.consumer = x.consumer AND d.seq = x.seq)) p WHERE p.seq IS NOT NULL) f
    ORDER BY f.consumer, f.floor, f.rank
$$;


--
-- Name: FUNCTION floors(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.floors() IS 'what each consumer still needs';


--
-- Name: handed_out(pg_snapshot, bigint, pg_snapshot, bigint, xid8, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.handed_out(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT pg_visible_in_snapshot($5, $1)
        OR ($5 >= pg_snapshot_xmax($1) AND $6 <= $2) -- it began after that
        OR ($3 IS NOT NULL AND $6 <= $4 AND pg_visible_in_snapshot($5, $3))
$_$;


--
-- Name: FUNCTION handed_out(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.handed_out(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, xid xid8, seq bigint) IS 'whether a lane is past an event';


--
-- Name: handle_all(text[], text[]); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.handle_all(handlers text[], keys text[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO "outbox".handled (handler, key, hash)
    SELECT x.handler, x.key, hashtextextended('', 0) FROM unnest(handlers, keys) AS x (handler, key);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$$;


--
-- Name: FUNCTION handle_all(handlers text[], keys text[]); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.handle_all(handlers text[], keys text[]) IS 'the inbox, for many at once';


--
-- Name: handle_once(text, text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.handle_once(handler text, key text, payload text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    content bigint := hashtextextended(coalesce(payload, ''), 0);
    known bigint;
BEGIN
    INSERT INTO "outbox".handled (handler, key, hash) VALUES (handle_once.handler, handle_once.key, content)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT h.hash INTO known FROM "outbox".handled h WHERE h.handler = handle_once.handler AND h.key = handle_once.key;
    IF known IS DISTINCT FROM content THEN
        RAISE EXCEPTION 'handler "%" has handled key "%" before with another payload', left(handler, 100), left(key, 100)
            USING ERRCODE = 'OB001';
    END IF;
    RETURN false;
END
$$;


--
-- Name: FUNCTION handle_once(handler text, key text, payload text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.handle_once(handler text, key text, payload text) IS 'the inbox: true the first time, in the same transaction as the effect';


--
-- Name: handled_before(text[], text[]); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.handled_before(handlers text[], keys text[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $_$
    SELECT x.n FROM unnest($1, $2) WITH ORDINALITY AS x (handler, key, n)
    WHERE EXISTS (SELECT 1 FROM "outbox".handled h WHERE h.handler = x.handler AND h.key = x.key)
$_$;


--
-- Name: FUNCTION handled_before(handlers text[], keys text[]); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.handled_before(handlers text[], keys text[]) IS 'which keys the handlers have taken effect for';


--
-- Name: home(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.home() RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN (SELECT system_identifier::text FROM pg_catalog.pg_control_system());
EXCEPTION WHEN insufficient_privilege THEN
    RETURN NULL;
END
$$;


--
-- Name: FUNCTION home(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.home() IS 'which cluster this is';


--
-- Name: hwm(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.hwm(stream text) RETURNS text
    LANGUAGE sql STABLE
    AS $$
    SELECT m.hi || '-' || m.lo FROM "outbox".mark m WHERE m.stream = hwm.stream ORDER BY m.hi DESC, m.lo DESC LIMIT 1
$$;


--
-- Name: FUNCTION hwm(stream text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.hwm(stream text) IS 'the last id in a stream that was written and recorded';


--
-- Name: key(text, text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.key(ordering text, aggregate_type text, aggregate_id text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE
        WHEN $1 = 'none' THEN 0
        WHEN $1 = 'global' THEN 1
        WHEN $3 IS NULL THEN 0
        ELSE coalesce(nullif(hashtextextended(coalesce($2, '') || chr(1) || $3, 0), 0), 1)
    END
$_$;


--
-- Name: FUNCTION key(ordering text, aggregate_type text, aggregate_id text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.key(ordering text, aggregate_type text, aggregate_id text) IS 'what order goes by; 0: nothing';


--
-- Name: lane_of(integer, bigint, text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.lane_of(lanes integer, seq bigint, aggregate_type text, aggregate_id text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE
        WHEN $1 = 1 THEN 0
        WHEN $4 IS NULL THEN ($2 % $1)::int
        ELSE ((hashtextextended(coalesce($3, '') || chr(1) || $4, 0) & 9223372036854775807) % $1)::int
    END
$_$;


--
-- Name: FUNCTION lane_of(lanes integer, seq bigint, aggregate_type text, aggregate_id text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.lane_of(lanes integer, seq bigint, aggregate_type text, aggregate_id text) IS 'the lane of an event';


--
-- Name: lanes(text, integer); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.lanes(consumer text, lanes integer) RETURNS SETOF outbox.lane
    LANGUAGE sql STABLE ROWS 2
    AS $_$
    SELECT l.* FROM generate_series(-1, $2 - 1) AS n, LATERAL (
        SELECT * FROM "outbox".lane x WHERE x.consumer = $1 AND x.lane = n ORDER BY x.version DESC LIMIT 1) AS l
$_$;


--
-- Name: FUNCTION lanes(consumer text, lanes integer); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.lanes(consumer text, lanes integer) IS 'how far each lane of a consumer has got';


--
-- Name: lock_consumer(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.lock_consumer(consumer text) RETURNS interval
    LANGUAGE plpgsql
    AS $$
DECLARE
    k bigint := hashtextextended('"outbox" consumer ' || consumer, 0);
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the outbox works in READ COMMITTED, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'OB002', HINT =
                  'SET default_transaction_isolation = ''read committed'' on this connection, or for its role (ALTER ROLE)';
    END IF;
    IF pg_try_advisory_xact_lock(k) THEN
        RETURN '0';
    END IF;
    PERFORM pg_advisory_xact_lock(k);
    RETURN clock_timestamp() - statement_timestamp();
END
$$;


--
-- Name: FUNCTION lock_consumer(consumer text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.lock_consumer(consumer text) IS 'serialises claims and settlements of a consumer';


--
-- Name: long_turn(text, text, bigint, bigint, jsonb, bigint, integer, bigint, integer, integer, boolean, boolean, integer, bigint[], text, integer, text, text, integer, text, bigint, bigint, integer); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.long_turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    c "outbox".consumer;
    ls "outbox".lane[];
    dirty boolean[];
    l "outbox".lane;
    k "outbox".claim;
    p record;
    f record;
    i int;
    head bigint;
    claims_from bigint;
    expired boolean;
    too_long boolean;
    parked boolean;
    free boolean;
    until timestamptz;
    due timestamptz;
    slack interval := '1 s'; -- of two turns the one that began first may come second
    lease interval := lease_ms * interval '1 millisecond';
    now timestamptz;
    waited interval;
BEGIN
    IF NOT has_table_privilege('"outbox".claim'::regclass, 'INSERT') THEN -- an operator may all the rest
        RAISE EXCEPTION 'permission denied: role "%" is no consumer', current_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    waited := "outbox".lock_consumer(consumer);
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        head := coalesce(pg_sequence_last_value('"outbox".event_seq_seq'), 0); -- for claim_fresh, before anything is written
    END IF;
    now := "outbox".clock() + waited; -- one for all of it: a claim is alive for all its parts, or for none
    lost := false; changed := false; busy := false; through := false; skipped := false; careful_due := false;
    crashed := 0; buried := 0; n := 0; careful := false;
    now_ms := floor(extract(epoch FROM now) * 1000);
    SELECT * INTO c FROM "outbox".consumer x WHERE x.name = long_turn.consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" is not registered (any more)', long_turn.consumer USING ERRCODE = 'OB003';
    END IF;
    PERFORM "outbox".check_tenant(c);
    paused := c.paused;
    changed := coalesce(c.ordering <> long_turn.ordering OR c.lanes <> long_turn.lanes OR c.events <> long_turn.events
                        OR c.predicate <> long_turn.predicate, false);
    SELECT array_agg(x ORDER BY x.lane), max(x.claims_from) INTO ls, claims_from FROM "outbox".lanes(c.name, c.lanes) x;
    dirty := array_fill(false, ARRAY[array_length(ls, 1)]);

    SELECT bool_or(x.locked_until <= now), bool_or(x.locked_until > now + x.lease + slack) INTO expired, too_long
    FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    IF too_long THEN -- a clock that was ahead when the lease was taken must not make it last for ever
        UPDATE "outbox".claim x SET locked_until = now + x.lease
        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.locked_until > now + x.lease + slack;
    END IF;
    IF expired AND NOT changed AND max_attempts > 0 THEN
        SELECT t.crashed, t.buried INTO crashed, buried FROM "outbox".take_over(c, claims_from, max_attempts, now) t;
    END IF;

    IF settle_epoch <> 0 THEN
        SELECT * INTO k FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch = settle_epoch
           AND x.owner = long_turn.owner AND x.locked_until > now;
        lost := NOT FOUND;
        IF NOT lost THEN
            i := k.lane + 2;
            ls[i].claims_from := claims_from;
            ls[i] := "outbox".settle_claim(c, ls[i], k, tried, outcomes, release_from, now);
            dirty[i] := true;
        END IF;
    END IF;

    IF max_events > 0 AND NOT changed AND NOT paused THEN
        parked := EXISTS (SELECT 1 FROM "outbox".parked x WHERE x.consumer = c.name);
        FOR step IN 1 .. 2 LOOP
            IF parked AND parked_first = (step = 1) THEN
                SELECT * INTO p FROM "outbox".claim_parked(c, owner, max_events, lease, careful_mode, pull_in, now);
                careful_due := p.careful_due;
                due := p.due;
                IF p.n > 0 THEN
                    epoch := p.epoch; lane := -1; n := p.n; careful := p.careful; from_seq := 0; to_seq := 0;
                    EXIT;
                END IF;
                EXIT WHEN careful_due AND careful_mode = 1;
            END IF;
            IF parked_first = (step = 2) AND NOT (parked AND c.ordering = 'global') THEN
                FOR j IN 0 .. c.lanes - 1 LOOP
                    i := (lane_hint + j) % c.lanes + 2;
                    IF c.ordering <> 'none' THEN
                        SELECT count(*) = 0, min(x.locked_until) INTO free, until FROM "outbox".claim x
                        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.lane = i - 2
                          AND NOT (x.locked_until > now AND x.epoch = ANY (known));
                        IF NOT free THEN
                            busy := true;
                            due := least(due, until);
                            CONTINUE;
                        END IF;
                    END IF;
                    f := "outbox".claim_fresh(c, ls[i], owner, max_events, lease, now, head,
                                              CASE WHEN i - 2 = ahead_lane THEN ahead_n ELSE 0 END, ahead_target, ahead_from,
                                              CASE WHEN i - 2 = ahead_lane THEN ahead_to ELSE 0 END);
                    skipped := skipped OR f.skipped;
                    IF f.changed THEN
                        ls[i] := f.l;
                        dirty[i] := true;
                    END IF;
                    IF f.n > 0 THEN
                        epoch := f.epoch; lane := i - 2; n := f.n; from_seq := f.from_seq; to_seq := ls[i].pos;
                        seen := ls[i].seen; floor := ls[i].floor; target := ls[i].target; window_end := ls[i].window_end;
                        EXIT;
                    END IF;
                END LOOP;
                EXIT WHEN n > 0;
            END IF;
        END LOOP;
        IF n > 0 AND lane >= 0 AND parked AND c.ordering = 'key' THEN
            SELECT array_agg(w.seq) INTO held
            FROM "outbox".window_events(ls[lane + 2].seen, floor, ls[lane + 2].target, from_seq, to_seq) w
            WHERE w.aggregate_id IS NOT NULL AND EXISTS (SELECT 1 FROM "outbox".parked b
                  WHERE b.consumer = c.name AND b.key = "outbox".key('key', w.aggregate_type, w.aggregate_id));
        END IF;
        IF n = 0 THEN -- one of its own that it does not know, because the answer got lost, is waited for like one of others
            SELECT coalesce(min(x.locked_until) FILTER (WHERE x.locked_until > now
                                AND (x.owner <> long_turn.owner OR x.epoch <> ALL (known))), due), count(*) INTO until, i
            FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
            due := least(due, until);
            through := i = 0 AND NOT skipped AND NOT (parked AND EXISTS (
                SELECT 1 FROM "outbox".parked x WHERE x.consumer = c.name AND x.claim IS NULL AND x.due_at IS NOT NULL
                   AND (NOT x.delayed OR x.due_at <= now)));
        END IF;
    END IF;
    wait_ms := CASE WHEN due IS NULL THEN -1 ELSE greatest(ceil(extract(epoch FROM due - now) * 1000), 0) END;
    FOR i IN 1 .. array_length(ls, 1) LOOP
        IF dirty[i] THEN
            PERFORM "outbox".put_lane(ls[i]);
        END IF;
    END LOOP;
END
$$;


--
-- Name: FUNCTION long_turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.long_turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint) IS 'a turn, whatever has to be considered';


--
-- Name: moved(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.moved() RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT coalesce((SELECT m.value <> "outbox".home() FROM "outbox".meta m WHERE m.name = 'system_identifier'), false)
        OR coalesce((SELECT e.xid FROM "outbox".event e ORDER BY e.xid DESC LIMIT 1) >= pg_snapshot_xmax(pg_current_snapshot()), false)
        OR EXISTS (SELECT 1 FROM "outbox".consumer c, LATERAL "outbox".lanes(c.name, c.lanes) l
                   WHERE pg_snapshot_xmax(l.seen) > pg_snapshot_xmax(pg_current_snapshot()))
$$;


--
-- Name: FUNCTION moved(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.moved() IS 'whether the outbox was restored from another cluster and not re-baselined yet';


--
-- Name: name_running(pg_snapshot); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.name_running(s pg_snapshot) RETURNS pg_snapshot
    LANGUAGE plpgsql
    AS $$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint; -- who begins from now on gets a higher one
    xmin bigint := pg_snapshot_xmin(s)::text::bigint;
    xmax bigint := pg_snapshot_xmax(s)::text::bigint;
BEGIN
    IF own = xmax THEN
        RETURN s;
    ELSIF own > xmax + 1000 THEN -- a transaction of many savepoints can do that
        RETURN NULL;
    END IF;
    RETURN concat(least(xmin, own), ':', greatest(xmax, own), ':',
                  (SELECT string_agg(r.x::text, ',' ORDER BY r.x)
                   FROM (SELECT p::text::bigint FROM pg_snapshot_xip(s) AS p
                         UNION SELECT generate_series(xmax, own - 1)
                         UNION SELECT own WHERE own < xmax) AS r (x)));
END
$$;


--
-- Name: FUNCTION name_running(s pg_snapshot); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.name_running(s pg_snapshot) IS 'a snapshot that names every running transaction';


--
-- Name: needed(xid8, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.needed(xid xid8, seq bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $_$
    SELECT EXISTS (SELECT 1 FROM "outbox".consumer c, LATERAL "outbox".lanes(c.name, c.lanes) l
                   WHERE l.lane >= 0 AND NOT "outbox".handed_out(l.seen, l.floor, l.target, l.pos, $1, $2))
        OR EXISTS (SELECT 1 FROM "outbox".claim k WHERE k.lane >= 0 AND $2 > k.from_seq AND $2 <= k.to_seq
                   AND NOT pg_visible_in_snapshot($1, k.seen) AND pg_visible_in_snapshot($1, k.target))
        OR EXISTS (SELECT 1 FROM "outbox".parked p JOIN "outbox".consumer c ON c.name = p.consumer WHERE p.seq = $2
                   AND NOT EXISTS (SELECT 1 FROM "outbox".dead d WHERE d.consumer = p.consumer AND d.seq = p.seq))
$_$;


--
-- Name: FUNCTION needed(xid xid8, seq bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.needed(xid xid8, seq bigint) IS 'whether anybody still needs an event';


--
-- Name: next_epoch(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.next_epoch() RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT (nextval('"outbox".epoch') << 20) | (random() * 1048575)::bigint
$$;


--
-- Name: FUNCTION next_epoch(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.next_epoch() IS 'the fence of the next claim';


--
-- Name: park(text, bigint, bigint, integer, timestamp with time zone, interval, boolean, boolean, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.park(consumer text, seq bigint, key bigint, attempts integer, due timestamp with time zone, wait interval, careful boolean, delayed boolean, error text) RETURNS void
    LANGUAGE plpgsql
    AS $_$
BEGIN
    INSERT INTO "outbox".parked AS p (consumer, seq, key, attempts, due_at, wait, careful, delayed, error, failed_at)
    VALUES ($1, $2, $3, $4,
            CASE WHEN $3 <> 0 AND EXISTS (SELECT 1 FROM "outbox".parked b WHERE b.consumer = $1 AND b.key = $3 AND b.seq < $2)
                 THEN NULL ELSE $5 END,
            $6, $7, $8, $9, CASE WHEN $9 IS NOT NULL THEN "outbox".clock() END)
    ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE SET attempts = excluded.attempts, due_at = excluded.due_at,
        wait = excluded.wait, careful = excluded.careful, delayed = excluded.delayed, claim = NULL,
        error = coalesce(excluded.error, p.error), failed_at = coalesce(excluded.failed_at, p.failed_at);
END
$_$;


--
-- Name: FUNCTION park(consumer text, seq bigint, key bigint, attempts integer, due timestamp with time zone, wait interval, careful boolean, delayed boolean, error text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.park(consumer text, seq bigint, key bigint, attempts integer, due timestamp with time zone, wait interval, careful boolean, delayed boolean, error text) IS 'makes an event wait';


--
-- Name: parts(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.parts(role text) RETURNS SETOF text
    LANGUAGE sql STABLE
    AS $_$
    SELECT p.part FROM pg_catalog.pg_roles g, (VALUES
        ('producer', (SELECT a.attacl FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid = '"outbox".event'::regclass AND a.attname = 'type'), 'INSERT'),
        ('consumer', (SELECT c.relacl FROM pg_catalog.pg_class c WHERE c.oid = '"outbox".claim'::regclass), 'INSERT'),
        ('operator', (SELECT c.relacl FROM pg_catalog.pg_class c WHERE c.oid = '"outbox".event'::regclass), 'DELETE'))
        AS p (part, acl, privilege)
    WHERE g.rolname = $1 AND EXISTS (SELECT 1 FROM pg_catalog.aclexplode(p.acl) x
                                     WHERE x.grantee = g.oid AND x.privilege_type = p.privilege)
$_$;


--
-- Name: FUNCTION parts(role text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.parts(role text) IS 'which parts a role was given';


--
-- Name: pause(text, boolean); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.pause(consumer text, paused boolean DEFAULT true) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE "outbox".consumer c SET paused = pause.paused WHERE c.name = pause.consumer;
    IF FOUND AND NOT pause.paused THEN
        PERFORM "outbox".bell_ring();
        RETURN true;
    END IF;
    RETURN FOUND;
END
$$;


--
-- Name: FUNCTION pause(consumer text, paused boolean); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.pause(consumer text, paused boolean) IS 'stops or resumes a consumer';


--
-- Name: promote(text, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.promote(consumer text, key bigint) RETURNS void
    LANGUAGE plpgsql
    AS $_$
BEGIN
    UPDATE "outbox".parked p SET due_at = "outbox".clock()
    WHERE p.consumer = $1 AND p.claim IS NULL AND p.due_at IS NULL AND $2 <> 0
      AND p.seq = (SELECT min(f.seq) FROM "outbox".parked f WHERE f.consumer = $1 AND f.key = $2);
END
$_$;


--
-- Name: FUNCTION promote(consumer text, key bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.promote(consumer text, key bigint) IS 'lets the next of a key step forward';


--
-- Name: put_lane(outbox.lane); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.put_lane(l outbox.lane) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO "outbox".lane VALUES (l.consumer, l.lane, l.version + 1, l.seen, l.floor, l.target, l.next_floor,
                                      l.window_end, l.pos, l.claims_from, l.delivered);
    DELETE FROM "outbox".lane x WHERE x.consumer = l.consumer AND x.lane = l.lane AND x.version = l.version;
END
$$;


--
-- Name: FUNCTION put_lane(l outbox.lane); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.put_lane(l outbox.lane) IS 'moves a lane on';


--
-- Name: rebaseline(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.rebaseline() RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    snap pg_snapshot;
    c "outbox".consumer;
    l "outbox".lane;
    head bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('"outbox" migrate', 0));
    PERFORM "outbox".lock_consumer(x.name) FROM "outbox".consumer x ORDER BY x.name;
    IF NOT "outbox".moved() THEN
        RETURN false;
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'rebaseline needs a transaction of its own' USING ERRCODE = 'OB002';
    END IF;
    head := coalesce(pg_sequence_last_value('"outbox".event_seq_seq'), 0);
    snap := "outbox".name_running(pg_current_snapshot()); -- what this transaction writes comes after: its number is xmax
    IF snap IS NULL THEN
        RAISE EXCEPTION 'too many transactions are running: try again' USING ERRCODE = 'lock_not_available';
    END IF;
    FOR c IN SELECT * FROM "outbox".consumer LOOP
        UPDATE "outbox".claim k SET locked_until = '-infinity' WHERE k.consumer = c.name;
        PERFORM "outbox".take_over(c, 0, 2147483647, "outbox".clock());
        FOR l IN SELECT * FROM "outbox".lanes(c.name, c.lanes) LOOP
            SELECT coalesce(min(e.seq) - 1, head) INTO l.floor FROM "outbox".event e
            WHERE NOT "outbox".handed_out(l.seen, l.floor, l.target, l.pos, e.xid, e.seq);
            l.seen := snap;
            l.target := NULL;
            l.pos := 0;
            PERFORM "outbox".put_lane(l);
        END LOOP;
    END LOOP;
    UPDATE "outbox".event e SET xid = pg_current_xact_id();
    INSERT INTO "outbox".meta AS m (name, value)
    VALUES ('rebaselined_from', coalesce((SELECT value FROM "outbox".meta WHERE name = 'system_identifier'), 'unknown')),
           ('rebaselined_at', clock_timestamp()::text),
           ('system_identifier', coalesce("outbox".home(), 'unknown'))
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    RAISE LOG 'outbox in schema % was restored from another cluster: re-baselined', '"outbox"';
    RETURN true;
END
$$;


--
-- Name: FUNCTION rebaseline(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.rebaseline() IS 'makes the outbox right after dump and restore';


--
-- Name: redrive(text, uuid); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.redrive(consumer text, event_id uuid DEFAULT NULL::uuid) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    n bigint;
BEGIN
    PERFORM "outbox".lock_consumer(consumer);
    IF NOT EXISTS (SELECT 1 FROM "outbox".consumer c WHERE c.name = redrive.consumer) THEN
        RAISE EXCEPTION 'consumer "%" is not registered', redrive.consumer USING ERRCODE = 'OB003';
    END IF;
    INSERT INTO "outbox".parked (consumer, seq, key, attempts, due_at)
    SELECT d.consumer, d.seq, "outbox".key(c.ordering, d.aggregate_type, d.aggregate_id), 0, "outbox".clock()
    FROM "outbox".dead d JOIN "outbox".consumer c ON c.name = d.consumer
    WHERE d.consumer = redrive.consumer AND NOT d.retrying AND (redrive.event_id IS NULL OR d.id = redrive.event_id)
    ON CONFLICT DO NOTHING;
    UPDATE "outbox".dead d SET retrying = true
    WHERE d.consumer = redrive.consumer AND NOT d.retrying AND (redrive.event_id IS NULL OR d.id = redrive.event_id);
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM "outbox".bell_ring();
    RETURN n;
END
$$;


--
-- Name: FUNCTION redrive(consumer text, event_id uuid); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.redrive(consumer text, event_id uuid) IS 'sends dead letters back';


--
-- Name: register(text, text, text, text, integer, text, text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.register(consumer text, events text DEFAULT ''::text, predicate text DEFAULT ''::text, ordering text DEFAULT 'key'::text, lanes integer DEFAULT 1, retry text DEFAULT 'fast'::text, start_at text DEFAULT 'beginning'::text) RETURNS boolean
    LANGUAGE plpgsql
    AS $_$
DECLARE
    c "outbox".consumer;
    l "outbox".lane;
    head bigint;
    snap pg_snapshot;
BEGIN
    IF consumer !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        RAISE EXCEPTION 'consumer name "%" is not 1 to 63 characters of A-Z a-z 0-9 _ . -', consumer USING ERRCODE = 'OB004';
    END IF;
    IF (ordering IN ('none', 'key', 'global') AND lanes BETWEEN 1 AND 64 AND NOT (ordering = 'global' AND lanes > 1)) IS NOT TRUE THEN
        RAISE EXCEPTION 'ordering is none, key or global; lanes are 1 to 64, and 1 for global' USING ERRCODE = 'OB004';
    END IF;
    IF start_at NOT IN ('beginning', 'end') AND start_at !~ '^[0-9]{1,18}$' THEN
        RAISE EXCEPTION 'start_at "%" is not beginning, end or a seq', start_at USING ERRCODE = 'OB004';
    END IF;
    PERFORM "outbox".lock_consumer(consumer);
    SELECT * INTO c FROM "outbox".consumer x WHERE x.name = register.consumer;
    IF FOUND THEN
        PERFORM "outbox".check_tenant(c);
    END IF;
    IF c.name IS NOT NULL AND c.ordering = register.ordering AND c.lanes = register.lanes THEN
        UPDATE "outbox".consumer x SET events = register.events, type_like = "outbox".type_like(register.events),
            predicate = register.predicate, retry = register.retry
        WHERE x.name = c.name AND (x.events, x.predicate, x.retry) IS DISTINCT FROM
                                  (register.events, register.predicate, register.retry);
        RETURN false;
    END IF;
    -- Nobody who begins after this takes a seq up to head: see claim_fresh.
    head := CASE WHEN pg_current_xact_id_if_assigned() IS NULL
                 THEN coalesce(pg_sequence_last_value('"outbox".event_seq_seq'), 0) ELSE 0 END;
    snap := "outbox".name_running(pg_current_snapshot());
    IF snap IS NULL THEN
        snap := pg_current_snapshot();
        head := 0;
    END IF;
    IF c.name IS NULL THEN
        INSERT INTO "outbox".consumer (name, events, type_like, predicate, ordering, lanes, retry)
        VALUES (register.consumer, register.events, "outbox".type_like(register.events), register.predicate,
                register.ordering, register.lanes, register.retry) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN -- it is there, but not for us to see
            RAISE EXCEPTION 'the name "%" is taken by a consumer of another tenant', consumer USING ERRCODE = 'OB004';
        END IF;
        IF start_at <> 'end' THEN
            snap := '1:1:';
            head := CASE start_at WHEN 'beginning' THEN 0 ELSE greatest(start_at::bigint - 1, 0) END;
        END IF;
        INSERT INTO "outbox".lane SELECT register.consumer, g, 1, snap, head, NULL, NULL, NULL, 0, 0, 0
        FROM generate_series(-1, register.lanes - 1) AS g;
        RETURN true;
    END IF;
    IF EXISTS (SELECT 1 FROM "outbox".claim x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM "outbox".parked x WHERE x.consumer = c.name)
       OR EXISTS (SELECT 1 FROM "outbox".lanes(c.name, c.lanes) x WHERE x.lane >= 0 AND CASE
                  WHEN x.target IS NULL THEN "outbox".window_next(x.seen, x.floor, snap, 0, 9223372036854775807)
                  ELSE coalesce("outbox".window_next(x.seen, x.floor, x.target, x.pos, x.window_end),
                                "outbox".window_next(x.target, x.next_floor, snap, 0, 9223372036854775807))
                  END IS NOT NULL) THEN
        RAISE EXCEPTION 'consumer "%" still has events on their way: its order and lanes can change only once it is through',
            c.name USING ERRCODE = 'OB001', HINT = 'run it with the old settings and --drain first';
    END IF;
    UPDATE "outbox".consumer x SET events = register.events, type_like = "outbox".type_like(register.events),
        predicate = register.predicate, retry = register.retry, ordering = register.ordering, lanes = register.lanes
    WHERE x.name = c.name;
    SELECT sum(x.delivered), greatest(head, max(x.floor)), max(x.version) + 1 INTO l.delivered, head, l.version
    FROM "outbox".lanes(c.name, c.lanes) x;
    DELETE FROM "outbox".lane x WHERE x.consumer = c.name;
    INSERT INTO "outbox".lane SELECT c.name, g, l.version, snap, head, NULL, NULL, NULL, 0, 0,
                                     CASE g WHEN -1 THEN l.delivered ELSE 0 END
    FROM generate_series(-1, register.lanes - 1) AS g;
    RETURN false;
END
$_$;


--
-- Name: FUNCTION register(consumer text, events text, predicate text, ordering text, lanes integer, retry text, start_at text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.register(consumer text, events text, predicate text, ordering text, lanes integer, retry text, start_at text) IS 'makes a consumer, or brings it up to date; returns whether it is new';


--
-- Name: claim; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.claim (
    consumer text NOT NULL,
    epoch bigint NOT NULL,
    lane integer NOT NULL,
    seen pg_snapshot,
    floor bigint NOT NULL,
    target pg_snapshot,
    next_floor bigint,
    window_end bigint,
    from_seq bigint NOT NULL,
    to_seq bigint NOT NULL,
    owner text NOT NULL,
    locked_until timestamp with time zone NOT NULL,
    lease interval NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_cost_delay='0');


--
-- Name: TABLE claim; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.claim IS 'batches being delivered, each leased to one worker';


--
-- Name: release(outbox.consumer, outbox.lane, outbox.claim, bigint, timestamp with time zone); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.release(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, release_from bigint, now timestamp with time zone) RETURNS outbox.lane
    LANGUAGE plpgsql
    AS $$
DECLARE
    e record;
    last boolean := l.pos = k.to_seq AND l.target::text = k.target::text;
BEGIN
    IF NOT coalesce(last, false) AND c.ordering <> 'none' THEN
        -- The lane may be further on, over events that were only passed over.
        last := NOT EXISTS (SELECT 1 FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch > k.epoch AND x.lane = k.lane);
    END IF;
    IF last THEN
        l.seen := k.seen;
        l.floor := k.floor;
        l.target := k.target;
        l.next_floor := k.next_floor;
        l.window_end := k.window_end;
        l.pos := greatest(k.from_seq, release_from - 1);
        RETURN;
    END IF;
    FOR e IN SELECT w.seq, w.aggregate_type, w.aggregate_id
             FROM "outbox".window_events(k.seen, k.floor, k.target, greatest(k.from_seq, release_from - 1), k.to_seq) w
             WHERE (c.type_like IS NULL OR w.type LIKE ANY (c.type_like))
               AND "outbox".lane_of(c.lanes, w.seq, w.aggregate_type, w.aggregate_id) = k.lane
             ORDER BY w.seq LOOP
        PERFORM "outbox".park(c.name, e.seq, "outbox".key(c.ordering, e.aggregate_type, e.aggregate_id), 0, now, '0', false,
                              false, NULL);
    END LOOP;
END
$$;


--
-- Name: FUNCTION release(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, release_from bigint, now timestamp with time zone); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.release(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, release_from bigint, now timestamp with time zone) IS 'gives events of a claim back';


--
-- Name: rights(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.rights(part text) RETURNS TABLE(privilege text, kind text, object text)
    LANGUAGE sql IMMUTABLE
    AS $_$
    SELECT r.privilege, r.kind, r.object FROM (VALUES
        (NULL, 'USAGE', 'SCHEMA', '"outbox"'),
        (NULL, 'SELECT', 'TABLE', '"outbox".meta'),

        ('producer', 'INSERT (id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before)', 'TABLE',
                     '"outbox".event'),
        ('producer', 'SELECT (tenant, key, event_id, hash), INSERT (tenant, key, event_id, hash)', 'TABLE',
                     '"outbox".idempotency'),

        ('consumer', 'SELECT', 'TABLE', '"outbox".event'),
        ('consumer', 'SELECT, INSERT (name, events, type_like, predicate, ordering, lanes, retry), UPDATE (events, '
                     'type_like, predicate, ordering, lanes, retry, report, report_at)', 'TABLE', '"outbox".consumer'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '"outbox".lane'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '"outbox".claim'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '"outbox".parked'),
        ('consumer', 'SELECT, INSERT, UPDATE (attempts, error, dead_at, retrying), DELETE', 'TABLE', '"outbox".dead'),
        ('consumer', 'SELECT, INSERT', 'TABLE', '"outbox".handled'),
        ('consumer', 'SELECT, INSERT, UPDATE (sink_id, at)', 'TABLE', '"outbox".receipt'),
        ('consumer', 'SELECT, INSERT, UPDATE (hi, lo, at)', 'TABLE', '"outbox".mark'),
        ('consumer', 'SELECT', 'TABLE', '"outbox".delivery'),
        ('consumer', 'SELECT', 'TABLE', '"outbox".consumer_status'),
        ('consumer', 'SELECT', 'SEQUENCE', '"outbox".event_seq_seq'),
        ('consumer', 'USAGE', 'SEQUENCE', '"outbox".epoch'),

        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".event'),
        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".idempotency'),
        ('operator', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '"outbox".consumer'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '"outbox".lane'),
        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".claim'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '"outbox".parked'),
        ('operator', 'SELECT, UPDATE (retrying), DELETE', 'TABLE', '"outbox".dead'),
        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".handled'),
        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".receipt'),
        ('operator', 'SELECT, DELETE', 'TABLE', '"outbox".mark'),
        ('operator', 'SELECT', 'TABLE', '"outbox".delivery'),
        ('operator', 'SELECT', 'TABLE', '"outbox".consumer_status'),
        ('operator', 'SELECT', 'SEQUENCE', '"outbox".event_seq_seq'),
        ('operator', 'SELECT', 'SEQUENCE', '"outbox".epoch')) AS r (part, privilege, kind, object)
    WHERE r.part = $1 OR r.part IS NULL
$_$;


--
-- Name: FUNCTION rights(part text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.rights(part text) IS 'what a role needs for its part';


--
-- Name: ring(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.ring() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared("outbox".bell_key()) AND "outbox".bell_works() THEN
        PERFORM pg_notify("outbox".bell_channel(), '');
    END IF;
    RETURN NULL;
END
$$;


--
-- Name: FUNCTION ring(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.ring() IS 'rings the doorbell if somebody sleeps';


--
-- Name: settle(text, text, bigint, jsonb, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.settle(consumer text, worker text, epoch bigint, outcomes jsonb DEFAULT '[]'::jsonb, release_from bigint DEFAULT 0) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    ours boolean;
    wrong bigint;
BEGIN
    IF jsonb_typeof(outcomes) IS DISTINCT FROM 'array' OR worker IS NULL OR epoch IS NULL THEN
        RAISE EXCEPTION 'settle takes a worker, an epoch and an array of outcomes' USING ERRCODE = 'OB004';
    END IF;
    SELECT min(o.seq) INTO wrong FROM jsonb_to_recordset(outcomes) AS o (seq bigint) WHERE o.seq >= nullif(release_from, 0);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'event % is given back, and has an outcome', wrong USING ERRCODE = 'OB004';
    END IF;
    SELECT NOT t.lost INTO ours FROM "outbox".turn(settle.consumer, worker, settle.epoch,
        (SELECT count(*) FROM "outbox".claimed(settle.consumer, settle.epoch) e
         WHERE e.seq < settle.release_from OR settle.release_from = 0), settle.outcomes, settle.release_from,
        0, 0, 0, 0, false, false, 0, NULL, NULL, NULL, NULL, NULL, -1, NULL, 0, 0, 0) t;
    RETURN ours;
END
$$;


--
-- Name: FUNCTION settle(consumer text, worker text, epoch bigint, outcomes jsonb, release_from bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.settle(consumer text, worker text, epoch bigint, outcomes jsonb, release_from bigint) IS 'records how a claim ended';


--
-- Name: settle_claim(outbox.consumer, outbox.lane, outbox.claim, bigint, jsonb, bigint, timestamp with time zone); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.settle_claim(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, tried bigint, outcomes jsonb, release_from bigint, now timestamp with time zone) RETURNS outbox.lane
    LANGUAGE plpgsql
    AS $$
DECLARE
    failed bigint := 0;
    keys bigint[];
BEGIN
    IF k.lane = -1 THEN
        SELECT array_agg(DISTINCT p.key) INTO keys FROM "outbox".parked p WHERE p.consumer = c.name AND p.claim = k.epoch;
    END IF;
    IF outcomes <> '[]' THEN
        failed := "outbox".settle_outcomes(c, k, outcomes, now);
    END IF;
    IF release_from > 0 AND k.lane = -1 THEN
        UPDATE "outbox".parked p SET claim = NULL, attempts = p.attempts - p.careful::int
        WHERE p.consumer = c.name AND p.claim = k.epoch AND p.seq >= release_from;
    ELSIF release_from > 0 THEN
        l := "outbox".release(c, l, k, release_from, now);
    END IF;
    IF k.lane = -1 THEN
        DELETE FROM "outbox".dead d USING "outbox".parked p
        WHERE d.consumer = c.name AND d.retrying AND p.consumer = c.name AND p.claim = k.epoch AND d.seq = p.seq;
        DELETE FROM "outbox".parked p WHERE p.consumer = c.name AND p.claim = k.epoch;
        PERFORM "outbox".promote(c.name, y) FROM unnest(keys) AS y;
    END IF;
    DELETE FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch = k.epoch;
    l.delivered := l.delivered + greatest(tried - failed, 0);
    -- Of all lanes: one that is never used would hold it back, and every look would step over the dead claims of the others.
    l.claims_from := coalesce((SELECT min(x.epoch) FROM "outbox".claim x WHERE x.consumer = c.name
                               AND x.epoch >= l.claims_from), k.epoch + 1);
END
$$;


--
-- Name: FUNCTION settle_claim(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, tried bigint, outcomes jsonb, release_from bigint, now timestamp with time zone); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.settle_claim(c outbox.consumer, INOUT l outbox.lane, k outbox.claim, tried bigint, outcomes jsonb, release_from bigint, now timestamp with time zone) IS 'records how a claim ended';


--
-- Name: settle_outcomes(outbox.consumer, outbox.claim, jsonb, timestamp with time zone); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.settle_outcomes(c outbox.consumer, k outbox.claim, outcomes jsonb, now timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    o record;
    e record;
    used int;
    failed bigint := 0;
BEGIN
    FOR o IN SELECT * FROM jsonb_to_recordset(outcomes)
             AS x (seq bigint, kind text, attempts int, delay_ms bigint, error text, id uuid, receipt text) LOOP
        IF o.kind = 'delivered' THEN
            INSERT INTO "outbox".receipt (consumer, seq, event_id, sink_id, at) VALUES (c.name, o.seq, o.id, o.receipt, now)
            ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = excluded.sink_id, at = excluded.at;
            CONTINUE;
        END IF;
        failed := failed + 1;
        SELECT p.attempts - p.careful::int INTO used FROM "outbox".parked p WHERE p.consumer = c.name AND p.seq = o.seq
           AND p.claim = k.epoch;
        IF (k.lane = -1) <> FOUND OR k.lane >= 0 AND (o.seq > k.from_seq AND o.seq <= k.to_seq) IS NOT TRUE THEN
            RAISE EXCEPTION 'event % is not in claim %', o.seq, k.epoch USING ERRCODE = 'OB004';
        END IF;
        o.attempts := coalesce(o.attempts, coalesce(used, 0) + (o.kind IN ('retry', 'dead'))::int);
        IF o.kind = 'dead' THEN
            PERFORM "outbox".bury(c.name, o.seq, o.attempts, coalesce(o.error, 'failed'));
        ELSIF o.kind = 'behind' AND k.lane = -1 THEN
            UPDATE "outbox".parked p SET claim = NULL, attempts = o.attempts WHERE p.consumer = c.name AND p.seq = o.seq;
        ELSIF o.kind IN ('retry', 'behind', 'delay') THEN
            SELECT x.aggregate_type, x.aggregate_id, x.not_before INTO e FROM "outbox".event x WHERE x.seq = o.seq;
            IF NOT FOUND THEN -- trimmed: it was a dead letter, which is kept whole
                SELECT x.aggregate_type, x.aggregate_id, x.not_before INTO e FROM "outbox".dead x
                WHERE x.consumer = c.name AND x.seq = o.seq;
            END IF;
            PERFORM "outbox".park(c.name, o.seq, "outbox".key(c.ordering, e.aggregate_type, e.aggregate_id),
                o.attempts,
                CASE o.kind WHEN 'retry' THEN now + greatest(o.delay_ms, 1) * interval '1 millisecond'
                            WHEN 'delay' THEN coalesce(e.not_before, now) ELSE now END,
                CASE o.kind WHEN 'retry' THEN greatest(o.delay_ms, 1) * interval '1 millisecond' ELSE '0' END,
                false, o.kind = 'delay', CASE o.kind WHEN 'retry' THEN coalesce(o.error, 'failed') END);
        ELSE
            RAISE EXCEPTION 'unknown outcome "%" for event %', o.kind, o.seq
                USING ERRCODE = 'OB004', HINT = 'kind is one of delivered, retry, dead, behind, delay';
        END IF;
    END LOOP;
    RETURN failed;
END
$$;


--
-- Name: FUNCTION settle_outcomes(c outbox.consumer, k outbox.claim, outcomes jsonb, now timestamp with time zone); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.settle_outcomes(c outbox.consumer, k outbox.claim, outcomes jsonb, now timestamp with time zone) IS 'parks, buries and writes receipts';


--
-- Name: shrink(text, text, bigint, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.shrink(consumer text, worker text, epoch bigint, last bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    c "outbox".consumer;
    k "outbox".claim;
    l "outbox".lane;
    now timestamptz;
BEGIN
    PERFORM "outbox".lock_consumer(consumer);
    now := "outbox".clock();
    SELECT * INTO c FROM "outbox".consumer x WHERE x.name = shrink.consumer;
    SELECT * INTO k FROM "outbox".claim x WHERE x.consumer = shrink.consumer AND x.epoch = shrink.epoch
       AND x.owner = shrink.worker AND x.locked_until > now;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF k.lane = -1 THEN
        UPDATE "outbox".parked p SET claim = NULL WHERE p.consumer = c.name AND p.claim = k.epoch AND p.seq > last;
        RETURN true;
    END IF;
    SELECT * INTO l FROM "outbox".lanes(c.name, c.lanes) x WHERE x.lane = k.lane;
    l := "outbox".release(c, l, k, last + 1, now);
    PERFORM "outbox".put_lane(l);
    UPDATE "outbox".claim x SET to_seq = last WHERE x.consumer = c.name AND x.epoch = k.epoch;
    RETURN true;
END
$$;


--
-- Name: FUNCTION shrink(consumer text, worker text, epoch bigint, last bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.shrink(consumer text, worker text, epoch bigint, last bigint) IS 'gives back the end of a claim';


--
-- Name: take_over(outbox.consumer, bigint, integer, timestamp with time zone); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.take_over(c outbox.consumer, claims_from bigint, max_attempts integer, now timestamp with time zone, OUT crashed bigint, OUT buried bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    k "outbox".claim;
    p "outbox".parked;
    n bigint;
BEGIN
    crashed := 0;
    buried := 0;
    LOOP
        SELECT * INTO k FROM "outbox".claim x
        WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.locked_until <= now
          AND (x.lane = -1 OR c.ordering = 'none' OR NOT EXISTS (
               SELECT 1 FROM "outbox".claim e WHERE e.consumer = x.consumer AND e.epoch >= claims_from AND e.epoch < x.epoch
                  AND e.lane = x.lane AND e.locked_until > now))
        ORDER BY x.epoch LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF k.lane = -1 THEN
            FOR p IN SELECT * FROM "outbox".parked x WHERE x.consumer = c.name AND x.claim = k.epoch
                       AND x.careful AND x.attempts >= max_attempts LOOP
                PERFORM "outbox".bury(c.name, p.seq, p.attempts,
                                      'the process died, or lost its lease, while delivering this event');
                PERFORM "outbox".promote(c.name, p.key);
                buried := buried + 1;
            END LOOP;
            UPDATE "outbox".parked x SET claim = NULL, careful = true WHERE x.consumer = c.name AND x.claim = k.epoch;
        ELSE
            INSERT INTO "outbox".parked (consumer, seq, key, attempts, due_at, careful, delayed)
            SELECT c.name, w.seq, w.key, 0,
                   CASE WHEN w.key <> 0 AND (w.nth > 1 OR EXISTS (SELECT 1 FROM "outbox".parked b
                             WHERE b.consumer = c.name AND b.key = w.key AND b.seq < w.seq))
                        THEN NULL ELSE greatest(now, w.not_before) END,
                   true, coalesce(w.not_before > now, false)
            FROM (SELECT e.seq, e.not_before, y.key, row_number() OVER (PARTITION BY y.key ORDER BY e.seq) AS nth
                  FROM "outbox".window_events(k.seen, k.floor, k.target, k.from_seq, k.to_seq) e,
                       LATERAL (SELECT "outbox".key(c.ordering, e.aggregate_type, e.aggregate_id) AS key) y
                  WHERE (c.type_like IS NULL OR e.type LIKE ANY (c.type_like))
                    AND "outbox".lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id) = k.lane) w
            ON CONFLICT DO NOTHING; -- parked by mistake already: it would be in the way for ever
        END IF;
        GET DIAGNOSTICS n = ROW_COUNT;
        crashed := crashed + n;
        DELETE FROM "outbox".claim x WHERE x.consumer = c.name AND x.epoch = k.epoch;
    END LOOP;
END
$$;


--
-- Name: FUNCTION take_over(c outbox.consumer, claims_from bigint, max_attempts integer, now timestamp with time zone, OUT crashed bigint, OUT buried bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.take_over(c outbox.consumer, claims_from bigint, max_attempts integer, now timestamp with time zone, OUT crashed bigint, OUT buried bigint) IS 'makes careful parked events of claims that ran out';


--
-- Name: trim(interval, integer, interval); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox."trim"(older_than interval, max_rows integer DEFAULT 1000, inbox interval DEFAULT NULL::interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text, OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    SET jit TO 'off'
    AS $$
DECLARE
    cutoff timestamptz := "outbox".clock() - older_than;
    inbox_cutoff timestamptz := "outbox".clock() - coalesce(inbox, older_than);
    floor bigint;
    last bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs its events'
            USING ERRCODE = 'OB004', HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM "outbox".floors() x ORDER BY x.floor LIMIT 1;
    floor := coalesce(f.floor, 0);
    pin := CASE WHEN f IS NULL THEN 'no consumer is registered yet'
           ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE WHEN f.paused THEN ', paused' ELSE '' END) END;
    SELECT count(*), max(o.seq) INTO kept, last
    FROM (SELECT x.seq, bool_and(x.created_at < cutoff) OVER (ORDER BY x.seq) AS old
          FROM (SELECT e.seq, e.created_at FROM "outbox".event e ORDER BY e.seq LIMIT max_rows) x) o WHERE o.old;
    DELETE FROM "outbox".event e WHERE e.seq <= last AND e.seq <= floor AND NOT "outbox".needed(e.xid, e.seq);
    GET DIAGNOSTICS events = ROW_COUNT;
    kept := kept - events;
    IF kept = 0 THEN
        pin := '';
    END IF;
    WITH gone AS (DELETE FROM "outbox".idempotency x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM "outbox".idempotency o WHERE o.at < cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT count(*) INTO keys FROM gone;
    WITH gone AS (DELETE FROM "outbox".handled x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM "outbox".handled o WHERE o.at < inbox_cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT keys + count(*) INTO keys FROM gone;
    WITH gone AS (DELETE FROM "outbox".receipt x WHERE x.ctid = ANY (ARRAY(
            SELECT o.ctid FROM "outbox".receipt o WHERE o.at < cutoff ORDER BY o.at LIMIT max_rows)) RETURNING 1)
    SELECT keys + count(*) INTO keys FROM gone;
    more := events = max_rows OR keys >= max_rows;
END
$$;


--
-- Name: FUNCTION "trim"(older_than interval, max_rows integer, inbox interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text, OUT more boolean); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox."trim"(older_than interval, max_rows integer, inbox interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text, OUT more boolean) IS 'deletes what is old and needed by nobody';


--
-- Name: trim_dry_run(interval, interval); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.trim_dry_run(older_than interval, inbox interval DEFAULT NULL::interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    cutoff timestamptz := "outbox".clock() - older_than;
    young bigint;
    f record;
BEGIN
    IF coalesce(current_setting('outbox.tenant', true), '') <> '' THEN
        RAISE EXCEPTION 'trimming is the platform''s: a tenant does not see who else needs its events'
            USING ERRCODE = 'OB004', HINT = 'trim without a tenant; for a relay of a tenant set retention to 0s';
    END IF;
    SELECT * INTO f FROM "outbox".floors() x ORDER BY x.floor LIMIT 1;
    SELECT min(e.seq) INTO young FROM "outbox".event e WHERE e.created_at >= cutoff;
    SELECT count(*) FILTER (WHERE e.seq <= coalesce(f.floor, 0)), count(*) INTO events, kept
    FROM "outbox".event e WHERE e.seq < coalesce(young, 9223372036854775807);
    kept := kept - events;
    pin := CASE WHEN kept = 0 THEN '' WHEN f IS NULL THEN 'no consumer is registered yet'
           ELSE format('consumer "%s" (%s at %s%s)', f.consumer, f.pin, f.floor, CASE WHEN f.paused THEN ', paused' ELSE '' END) END;
    keys := (SELECT count(*) FROM "outbox".idempotency x WHERE x.at < cutoff)
          + (SELECT count(*) FROM "outbox".handled x WHERE x.at < "outbox".clock() - coalesce(inbox, older_than))
          + (SELECT count(*) FROM "outbox".receipt x WHERE x.at < cutoff);
END
$$;


--
-- Name: FUNCTION trim_dry_run(older_than interval, inbox interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.trim_dry_run(older_than interval, inbox interval, OUT events bigint, OUT keys bigint, OUT kept bigint, OUT pin text) IS 'what trim would delete';


--
-- Name: turn(text, text, bigint, bigint, jsonb, bigint, integer, bigint, integer, integer, boolean, boolean, integer, bigint[], text, integer, text, text, integer, text, bigint, bigint, integer); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    now timestamptz;
    l "outbox".lane;
BEGIN
    IF ahead_n BETWEEN 1 AND max_events AND ahead_lane = 0 AND turn.lanes = 1 AND outcomes = '[]' AND release_from = 0
       AND current_setting('transaction_isolation') = 'read committed'
       AND pg_try_advisory_xact_lock(hashtextextended('"outbox" consumer ' || consumer, 0)) THEN -- as in lock_consumer
        now := "outbox".clock();
        SELECT x.* INTO l
        FROM "outbox".consumer c, LATERAL (SELECT * FROM "outbox".lane y WHERE y.consumer = c.name AND y.lane = 0
                                           ORDER BY y.version DESC LIMIT 1) AS x
        WHERE c.name = turn.consumer AND c.ordering = turn.ordering AND c.lanes = 1 AND c.events = turn.events
          AND c.predicate = turn.predicate AND NOT c.paused AND c.tenant = coalesce(current_setting('outbox.tenant', true), '')
          AND (c.tenant = '' OR row_security_active('"outbox".event'))
          AND x.pos = ahead_from AND x.target::text = ahead_target
          AND NOT EXISTS (SELECT 1 FROM "outbox".parked p WHERE p.consumer = c.name);
        UPDATE "outbox".claim k
        SET epoch = "outbox".next_epoch(), seen = l.seen, floor = l.floor, target = l.target, next_floor = l.next_floor,
            window_end = l.window_end, from_seq = ahead_from, to_seq = ahead_to,
            locked_until = now + lease_ms * interval '1 millisecond', lease = lease_ms * interval '1 millisecond'
        WHERE k.consumer = l.consumer AND k.epoch = settle_epoch AND k.owner = turn.owner AND k.locked_until > now AND k.lane = 0
          AND NOT EXISTS (SELECT 1 FROM "outbox".claim o WHERE o.consumer = l.consumer AND o.epoch >= l.claims_from
                             AND o.epoch <> settle_epoch AND (o.epoch = ANY (known) AND o.locked_until > now
                                  AND o.locked_until <= now + o.lease + interval '1 s') IS NOT TRUE)
        RETURNING k.epoch INTO epoch;
        IF FOUND THEN
            UPDATE "outbox".lane x
            SET version = l.version + 1, pos = ahead_to, delivered = l.delivered + tried, claims_from =
                (SELECT min(k.epoch) FROM "outbox".claim k WHERE k.consumer = l.consumer AND k.epoch >= l.claims_from)
            WHERE x.consumer = l.consumer AND x.lane = 0 AND x.version = l.version;
            SELECT false, false, false, false, false, false, false, 0, 0, -1, floor(extract(epoch FROM now) * 1000),
                   0, ahead_n, false, l.seen, l.floor, ahead_target, ahead_from, ahead_to, l.window_end
            INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms,
                 lane, n, careful, seen, floor, target, from_seq, to_seq, window_end;
            RETURN;
        END IF;
    END IF;
    SELECT t.* INTO lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms, epoch, lane,
                    n, careful, held, seen, floor, target, from_seq, to_seq, window_end
    FROM "outbox".long_turn(consumer, owner, settle_epoch, tried, outcomes, release_from, max_events, lease_ms,
                            max_attempts, careful_mode, parked_first, pull_in, lane_hint, known, ordering, lanes, events,
                            predicate, ahead_lane, ahead_target, ahead_from, ahead_to, ahead_n) t;
END
$$;


--
-- Name: FUNCTION turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.turn(consumer text, owner text, settle_epoch bigint, tried bigint, outcomes jsonb, release_from bigint, max_events integer, lease_ms bigint, max_attempts integer, careful_mode integer, parked_first boolean, pull_in boolean, lane_hint integer, known bigint[], ordering text, lanes integer, events text, predicate text, ahead_lane integer, ahead_target text, ahead_from bigint, ahead_to bigint, ahead_n integer, OUT lost boolean, OUT paused boolean, OUT changed boolean, OUT busy boolean, OUT through boolean, OUT skipped boolean, OUT careful_due boolean, OUT crashed bigint, OUT buried bigint, OUT wait_ms bigint, OUT now_ms bigint, OUT epoch bigint, OUT lane integer, OUT n integer, OUT careful boolean, OUT held bigint[], OUT seen text, OUT floor bigint, OUT target text, OUT from_seq bigint, OUT to_seq bigint, OUT window_end bigint) IS 'one transaction of a worker: take over, settle, claim';


--
-- Name: type_like(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.type_like(events text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE WHEN NOT bool_or(p = '*')
           THEN array_agg(replace(replace(replace(replace(p, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')) END
    FROM regexp_split_to_table($1, ',') AS x, btrim(x, E' \t\r\n') AS p WHERE p <> ''
$_$;


--
-- Name: FUNCTION type_like(events text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.type_like(events text) IS 'type patterns for LIKE';


--
-- Name: unadopt(text); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.unadopt(source text) RETURNS boolean
    LANGUAGE plpgsql
    SET lock_timeout TO '5s'
    AS $$
DECLARE
    tab regclass := "outbox".adopt_source(source);
    trigger_name text := "outbox".adopted(tab);
    f regprocedure;
BEGIN
    IF trigger_name IS NULL THEN
        RETURN false;
    END IF;
    SELECT t.tgfoid INTO f FROM pg_catalog.pg_trigger t WHERE t.tgrelid = tab AND t.tgname = trigger_name;
    EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, tab);
    EXECUTE format('DROP FUNCTION %s', f);
    RETURN true;
END
$$;


--
-- Name: FUNCTION unadopt(source text); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.unadopt(source text) IS 'undoes adopt';


--
-- Name: uuid7(); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.uuid7() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    AS $$
    SELECT encode(int8send((date_part('epoch', clock_timestamp()) * 1000)::bigint << 16 | 28672 | (random() * 4095)::int)
                  || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
$$;


--
-- Name: FUNCTION uuid7(); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.uuid7() IS 'a new event id';


--
-- Name: event; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.event (
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    seq bigint NOT NULL,
    version bigint,
    created_at timestamp with time zone DEFAULT outbox.clock() NOT NULL,
    not_before timestamp with time zone,
    id uuid DEFAULT (encode((int8send((((((date_part('epoch'::text, clock_timestamp()) * (1000)::double precision))::bigint << 16) | (28672)::bigint) | (((random() * (4095)::double precision))::integer)::bigint)) || SUBSTRING(uuid_send(gen_random_uuid()) FROM 9)), 'hex'::text))::uuid NOT NULL,
    type outbox.event_type NOT NULL,
    aggregate_type text,
    aggregate_id text,
    payload json DEFAULT 'null'::json NOT NULL,
    headers outbox.event_headers,
    tenant text DEFAULT NULLIF(current_setting('outbox.tenant'::text, true), ''::text)
);


--
-- Name: TABLE event; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.event IS 'events: inserted once, never changed, trimmed when old and needed by nobody';


--
-- Name: window_events(pg_snapshot, bigint, pg_snapshot, bigint, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.window_events(seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint, to_seq bigint) RETURNS SETOF outbox.event
    LANGUAGE sql STABLE
    AS $_$
    (SELECT e.* FROM "outbox".event e
     WHERE e.seq > greatest($4, $2) AND e.seq <= $5
       AND xid8ge(e.xid, pg_snapshot_xmax($1)) AND pg_visible_in_snapshot(e.xid, $3) ORDER BY e.seq)
    UNION ALL
    (SELECT e.* FROM pg_snapshot_xip($1) AS late (xid), LATERAL (
         SELECT i.* FROM "outbox".event i WHERE i.xid = late.xid AND i.seq > $4 AND i.seq <= $5
         ORDER BY i.seq OFFSET 0) AS e -- the fence keeps it on the index by xid
     WHERE pg_visible_in_snapshot(late.xid, $3) ORDER BY e.seq)
$_$;


--
-- Name: FUNCTION window_events(seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint, to_seq bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.window_events(seen pg_snapshot, floor bigint, target pg_snapshot, from_seq bigint, to_seq bigint) IS 'the events between two snapshots';


--
-- Name: window_next(pg_snapshot, bigint, pg_snapshot, bigint, bigint); Type: FUNCTION; Schema: outbox; Owner: -
--

CREATE FUNCTION outbox.window_next(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    late bigint;
    fresh bigint;
BEGIN
    SELECT min(n.seq) INTO late FROM pg_snapshot_xip(seen) AS x (xid), LATERAL (
        SELECT i.seq FROM "outbox".event i WHERE i.xid = x.xid AND i.seq > pos ORDER BY i.seq LIMIT 1) AS n
    WHERE pg_visible_in_snapshot(x.xid, target);
    SELECT e.seq INTO fresh FROM "outbox".event e
    WHERE e.seq > greatest(pos, floor) AND e.seq <= window_end AND e.seq < coalesce(late, 9223372036854775807)
      AND xid8ge(e.xid, pg_snapshot_xmax(seen)) AND pg_visible_in_snapshot(e.xid, target)
    ORDER BY e.seq LIMIT 1;
    RETURN coalesce(fresh, late);
END
$$;


--
-- Name: FUNCTION window_next(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint); Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON FUNCTION outbox.window_next(seen pg_snapshot, floor bigint, target pg_snapshot, pos bigint, window_end bigint) IS 'the next seq of a window';


--
-- Name: dead; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.dead (
    consumer text NOT NULL,
    seq bigint NOT NULL,
    version bigint,
    created_at timestamp with time zone NOT NULL,
    not_before timestamp with time zone,
    id uuid NOT NULL,
    type text NOT NULL,
    aggregate_type text,
    aggregate_id text,
    payload json NOT NULL,
    headers json,
    tenant text,
    attempts integer NOT NULL,
    error text,
    dead_at timestamp with time zone NOT NULL,
    retrying boolean DEFAULT false NOT NULL
);


--
-- Name: TABLE dead; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.dead IS 'dead letters, per consumer';


--
-- Name: event_seq_seq; Type: SEQUENCE; Schema: outbox; Owner: -
--

ALTER TABLE outbox.event ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outbox.event_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: parked; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.parked (
    consumer text NOT NULL,
    seq bigint NOT NULL,
    key bigint NOT NULL,
    attempts integer NOT NULL,
    due_at timestamp with time zone,
    wait interval DEFAULT '00:00:00'::interval NOT NULL,
    careful boolean DEFAULT false NOT NULL,
    delayed boolean DEFAULT false NOT NULL,
    claim bigint,
    error text,
    failed_at timestamp with time zone
);


--
-- Name: TABLE parked; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.parked IS 'events that failed and wait, or wait behind one that did';


--
-- Name: consumer_status; Type: VIEW; Schema: outbox; Owner: -
--

CREATE VIEW outbox.consumer_status WITH (security_invoker='true') AS
 SELECT c.name,
    c.events,
    c.predicate,
    c.ordering,
    c.lanes,
    c.retry,
    c.paused,
    c.created_at,
    c.report,
    c.report_at,
    l."position",
    GREATEST((COALESCE(pg_sequence_last_value('outbox.event_seq_seq'::regclass), (0)::bigint) - l."position"), (0)::bigint) AS behind,
    ( SELECT e.created_at
           FROM outbox.event e
          WHERE (e.seq > l."position")
          ORDER BY e.seq
         LIMIT 1) AS oldest_at,
    l.delivered,
    COALESCE(k.inflight, (0)::bigint) AS inflight,
    k.owner,
    ( SELECT count(*) AS count
           FROM outbox.parked p
          WHERE (p.consumer = c.name)) AS parked,
    ( SELECT count(*) AS count
           FROM outbox.dead d
          WHERE ((d.consumer = c.name) AND (NOT d.retrying))) AS dead,
    ( SELECT min(p.due_at) AS min
           FROM outbox.parked p
          WHERE ((p.consumer = c.name) AND (p.claim IS NULL) AND (p.due_at IS NOT NULL))) AS next_due,
    f.error AS last_error,
    f.failed_at AS last_error_at,
    o.floor,
    o.pin AS floor_pin
   FROM ((((outbox.consumer c
     CROSS JOIN LATERAL ( SELECT min(
                CASE
                    WHEN (x.lane < 0) THEN NULL::bigint
                    WHEN (x.target IS NULL) THEN x.floor
                    ELSE GREATEST(x.floor, x.pos)
                END) AS "position",
            (sum(x.delivered))::bigint AS delivered
           FROM outbox.lanes(c.name, c.lanes) x(consumer, lane, version, seen, floor, target, next_floor, window_end, pos, claims_from, delivered)) l)
     LEFT JOIN LATERAL ( SELECT count(*) AS inflight,
            (array_agg(x.owner ORDER BY x.epoch DESC))[1] AS owner
           FROM outbox.claim x
          WHERE ((x.consumer = c.name) AND (x.locked_until > outbox.clock()))) k ON (true))
     LEFT JOIN LATERAL ( SELECT p.error,
            p.failed_at
           FROM outbox.parked p
          WHERE ((p.consumer = c.name) AND (p.failed_at IS NOT NULL))
          ORDER BY p.failed_at DESC
         LIMIT 1) f ON (true))
     JOIN outbox.floors() o(consumer, paused, floor, pin) ON ((o.consumer = c.name)));


--
-- Name: VIEW consumer_status; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON VIEW outbox.consumer_status IS 'how every consumer is';


--
-- Name: delivery; Type: VIEW; Schema: outbox; Owner: -
--

CREATE VIEW outbox.delivery WITH (security_invoker='true') AS
 SELECT e.seq,
    e.id AS event_id,
    e.type,
    c.name AS consumer,
        CASE
            WHEN ((d.seq IS NOT NULL) AND (NOT d.retrying)) THEN 'expired'::text
            WHEN (p.claim IS NOT NULL) THEN 'in-flight'::text
            WHEN (p.attempts > 0) THEN 'failed'::text
            WHEN (p.seq IS NOT NULL) THEN 'pending'::text
            WHEN (EXISTS ( SELECT 1
               FROM outbox.claim k
              WHERE ((k.consumer = c.name) AND (k.lane = l.lane) AND (e.seq > k.from_seq) AND (e.seq <= k.to_seq) AND (NOT pg_visible_in_snapshot(e.xid, k.seen)) AND pg_visible_in_snapshot(e.xid, k.target)))) THEN 'in-flight'::text
            WHEN outbox.handed_out(l.seen, l.floor, l.target, l.pos, e.xid, e.seq) THEN 'delivered'::text
            ELSE 'pending'::text
        END AS state,
    COALESCE(p.attempts, d.attempts, 0) AS attempts,
    p.due_at,
    COALESCE(p.error, d.error) AS error
   FROM ((((outbox.event e
     CROSS JOIN outbox.consumer c)
     CROSS JOIN LATERAL ( SELECT x.consumer,
            x.lane,
            x.version,
            x.seen,
            x.floor,
            x.target,
            x.next_floor,
            x.window_end,
            x.pos,
            x.claims_from,
            x.delivered
           FROM outbox.lane x
          WHERE ((x.consumer = c.name) AND (x.lane = outbox.lane_of(c.lanes, e.seq, e.aggregate_type, e.aggregate_id)))
          ORDER BY x.version DESC
         LIMIT 1) l)
     LEFT JOIN outbox.parked p ON (((p.consumer = c.name) AND (p.seq = e.seq))))
     LEFT JOIN outbox.dead d ON (((d.consumer = c.name) AND (d.seq = e.seq))))
  WHERE ((c.type_like IS NULL) OR ((e.type)::text ~~ ANY (c.type_like)));


--
-- Name: VIEW delivery; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON VIEW outbox.delivery IS 'the state of every event for every consumer';


--
-- Name: epoch; Type: SEQUENCE; Schema: outbox; Owner: -
--

CREATE SEQUENCE outbox.epoch
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: handled; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.handled (
    handler text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    hash bigint NOT NULL,
    at timestamp with time zone DEFAULT outbox.clock() NOT NULL
);


--
-- Name: TABLE handled; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.handled IS 'the inbox: what each handler has taken effect for';


--
-- Name: idempotency; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.idempotency (
    tenant text NOT NULL,
    key text NOT NULL,
    event_id uuid NOT NULL,
    hash bigint NOT NULL,
    at timestamp with time zone DEFAULT outbox.clock() NOT NULL
);


--
-- Name: TABLE idempotency; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.idempotency IS 'idempotency keys of emitted events';


--
-- Name: mark; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.mark (
    stream text NOT NULL,
    consumer text NOT NULL,
    hi bigint NOT NULL,
    lo bigint NOT NULL,
    at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');


--
-- Name: TABLE mark; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.mark IS 'how far each consumer has written each stream';


--
-- Name: meta; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.meta (
    name text NOT NULL,
    value text NOT NULL
);


--
-- Name: TABLE meta; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.meta IS 'what the outbox knows of itself: schema version, and the cluster it lives in';


--
-- Name: receipt; Type: TABLE; Schema: outbox; Owner: -
--

CREATE TABLE outbox.receipt (
    consumer text NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    sink_id text,
    at timestamp with time zone NOT NULL
);


--
-- Name: TABLE receipt; Type: COMMENT; Schema: outbox; Owner: -
--

COMMENT ON TABLE outbox.receipt IS 'optional record of deliveries';


--
-- Name: shop_outbox; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.shop_outbox (
    id uuid NOT NULL,
    aggregatetype text,
    aggregateid text,
    type text,
    payload jsonb
);


--
-- Data for Name: claim; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.claim (consumer, epoch, lane, seen, floor, target, next_floor, window_end, from_seq, to_seq, owner, locked_until, lease) FROM stdin;
killed	17899351	0	1:1:	0	763:763:	90	90	20	40	vm:5029:9933980b	2026-11-16 23:34:29.671787+00	00:00:30
\.


--
-- Data for Name: consumer; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.consumer (name, events, type_like, predicate, ordering, lanes, retry, paused, created_at, report, report_at, tenant) FROM stdin;
done		\N		key	1	fast	f	2026-11-16 23:33:59.187858+00	\N	\N	
lanes		\N		key	4	fast	f	2026-11-16 23:33:59.229011+00	\N	\N	
global		\N		global	1	fast	f	2026-11-16 23:33:59.270794+00	\N	\N	
some	order.*	{order.%}	by = "card"	key	1	fast	f	2026-11-16 23:33:59.322338+00	\N	\N	
paused		\N		key	1	fast	t	2026-11-16 23:33:59.360844+00	\N	\N	
flaky		\N		key	1	base=1h,cap=1h,attempts=5,jitter=full	f	2026-11-16 23:33:59.425594+00	\N	\N	
killed		\N		key	1	fast	f	2026-11-16 23:33:59.628654+00	\N	\N	
\.


--
-- Data for Name: dead; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.dead (consumer, seq, version, created_at, not_before, id, type, aggregate_type, aggregate_id, payload, headers, tenant, attempts, error, dead_at, retrying) FROM stdin;
flaky	13	\N	2026-11-16 23:33:59.116949+00	\N	01a1e6b5-d6cc-7366-b8f5-1da288c687cb	order.created	order	4	{"n": 12, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.5393+00	f
flaky	21	\N	2026-11-16 23:33:59.117456+00	\N	01a1e6b5-d6cd-7230-94e3-6c2bd1ae06aa	stock.low	order	4	{"n": 20, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.542466+00	f
flaky	29	\N	2026-11-16 23:33:59.118084+00	\N	01a1e6b5-d6ce-7673-b6e9-4b234123146b	order.paid	order	4	{"n": 28, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.544855+00	f
flaky	37	\N	2026-11-16 23:33:59.118608+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2b988e9142	order.created	order	4	{"n": 36, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.546897+00	f
flaky	45	\N	2026-11-16 23:33:59.119139+00	\N	01a1e6b5-d6cf-703b-9248-36e1ce616c22	stock.low	order	4	{"n": 44, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.549122+00	f
flaky	53	\N	2026-11-16 23:33:59.119661+00	\N	01a1e6b5-d6cf-703b-9248-36e941e91fea	order.paid	order	4	{"n": 52, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.551419+00	f
flaky	5	\N	2026-11-16 23:33:59.116346+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9a22a5b519	order.paid	order	4	{"n": 4, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N	1	exit status 65: never	2026-11-16 23:33:59.531758+00	t
\.


--
-- Data for Name: event; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.event (xid, seq, version, created_at, not_before, id, type, aggregate_type, aggregate_id, payload, headers, tenant) FROM stdin;
727	1	\N	2026-11-16 23:33:59.115669+00	\N	01a1e6b5-d6ca-74e4-97bb-203f3e34eb56	order.created	order	0	{"n": 0, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	2	\N	2026-11-16 23:33:59.116114+00	\N	01a1e6b5-d6cc-7366-b8f5-1d979e0f55eb	order.paid	order	1	{"n": 1, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	3	\N	2026-11-16 23:33:59.116199+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9800823b40	stock.low	order	2	{"n": 2, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	4	\N	2026-11-16 23:33:59.116278+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9909b1c7c6	order.created	order	3	{"n": 3, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	5	\N	2026-11-16 23:33:59.116346+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9a22a5b519	order.paid	order	4	{"n": 4, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	6	\N	2026-11-16 23:33:59.116412+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9b372feab4	stock.low	order	5	{"n": 5, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	7	\N	2026-11-16 23:33:59.11648+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9c7a8a1725	order.created	order	6	{"n": 6, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	8	\N	2026-11-16 23:33:59.116544+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9d316af727	order.paid	order	7	{"n": 7, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	9	\N	2026-11-16 23:33:59.116607+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9edb00fe55	stock.low	order	0	{"n": 8, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	10	\N	2026-11-16 23:33:59.116724+00	\N	01a1e6b5-d6cc-7366-b8f5-1d9ff4f8bd21	order.created	order	1	{"n": 9, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	11	\N	2026-11-16 23:33:59.116812+00	\N	01a1e6b5-d6cc-7366-b8f5-1da0b61b4f35	order.paid	order	2	{"n": 10, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	12	\N	2026-11-16 23:33:59.116883+00	\N	01a1e6b5-d6cc-7366-b8f5-1da14e640e4d	stock.low	order	3	{"n": 11, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	13	\N	2026-11-16 23:33:59.116949+00	\N	01a1e6b5-d6cc-7366-b8f5-1da288c687cb	order.created	order	4	{"n": 12, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	14	\N	2026-11-16 23:33:59.117015+00	\N	01a1e6b5-d6cc-7366-b8f5-1da3785ef752	order.paid	order	5	{"n": 13, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	15	\N	2026-11-16 23:33:59.11708+00	\N	01a1e6b5-d6cd-7230-94e3-6c25215c1d15	stock.low	order	6	{"n": 14, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	16	\N	2026-11-16 23:33:59.117142+00	\N	01a1e6b5-d6cd-7230-94e3-6c2644928d21	order.created	order	7	{"n": 15, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	17	\N	2026-11-16 23:33:59.117204+00	\N	01a1e6b5-d6cd-7230-94e3-6c27378f762c	order.paid	order	0	{"n": 16, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	18	\N	2026-11-16 23:33:59.117266+00	\N	01a1e6b5-d6cd-7230-94e3-6c28da638c00	stock.low	order	1	{"n": 17, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	19	\N	2026-11-16 23:33:59.117328+00	\N	01a1e6b5-d6cd-7230-94e3-6c29e146af2a	order.created	order	2	{"n": 18, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	20	\N	2026-11-16 23:33:59.117391+00	\N	01a1e6b5-d6cd-7230-94e3-6c2abc67e40a	order.paid	order	3	{"n": 19, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	21	\N	2026-11-16 23:33:59.117456+00	\N	01a1e6b5-d6cd-7230-94e3-6c2bd1ae06aa	stock.low	order	4	{"n": 20, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	22	\N	2026-11-16 23:33:59.117524+00	\N	01a1e6b5-d6cd-7230-94e3-6c2ca04f44af	order.created	order	5	{"n": 21, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	23	\N	2026-11-16 23:33:59.117598+00	\N	01a1e6b5-d6cd-7230-94e3-6c2d58e8b5b3	order.paid	order	6	{"n": 22, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	24	\N	2026-11-16 23:33:59.117735+00	\N	01a1e6b5-d6cd-7230-94e3-6c2ee5b195aa	stock.low	order	7	{"n": 23, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	25	\N	2026-11-16 23:33:59.117818+00	\N	01a1e6b5-d6cd-7230-94e3-6c2f6e385907	order.created	order	0	{"n": 24, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	26	\N	2026-11-16 23:33:59.117884+00	\N	01a1e6b5-d6cd-7230-94e3-6c3067500416	order.paid	order	1	{"n": 25, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	27	\N	2026-11-16 23:33:59.117952+00	\N	01a1e6b5-d6cd-7230-94e3-6c31ee22aa59	stock.low	order	2	{"n": 26, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	28	\N	2026-11-16 23:33:59.118018+00	\N	01a1e6b5-d6cd-7230-94e3-6c32d4ceb6da	order.created	order	3	{"n": 27, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	29	\N	2026-11-16 23:33:59.118084+00	\N	01a1e6b5-d6ce-7673-b6e9-4b234123146b	order.paid	order	4	{"n": 28, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	30	\N	2026-11-16 23:33:59.118157+00	\N	01a1e6b5-d6ce-7673-b6e9-4b24faa6447d	stock.low	order	5	{"n": 29, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	31	\N	2026-11-16 23:33:59.118223+00	\N	01a1e6b5-d6ce-7673-b6e9-4b25474cff21	order.created	order	6	{"n": 30, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	32	\N	2026-11-16 23:33:59.118287+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2684c2c3ea	order.paid	order	7	{"n": 31, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	33	\N	2026-11-16 23:33:59.118352+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2734562fa9	stock.low	order	0	{"n": 32, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	34	\N	2026-11-16 23:33:59.118417+00	\N	01a1e6b5-d6ce-7673-b6e9-4b289d0f7352	order.created	order	1	{"n": 33, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	35	\N	2026-11-16 23:33:59.118482+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2989d23628	order.paid	order	2	{"n": 34, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	36	\N	2026-11-16 23:33:59.118546+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2abf78c61b	stock.low	order	3	{"n": 35, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	37	\N	2026-11-16 23:33:59.118608+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2b988e9142	order.created	order	4	{"n": 36, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	38	\N	2026-11-16 23:33:59.11869+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2c95d1df30	order.paid	order	5	{"n": 37, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	39	\N	2026-11-16 23:33:59.118757+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2d474ab443	stock.low	order	6	{"n": 38, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	40	\N	2026-11-16 23:33:59.118819+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2e64a6c22b	order.created	order	7	{"n": 39, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	41	\N	2026-11-16 23:33:59.118882+00	\N	01a1e6b5-d6ce-7673-b6e9-4b2f875c4af0	order.paid	order	0	{"n": 40, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	42	\N	2026-11-16 23:33:59.118946+00	\N	01a1e6b5-d6ce-7673-b6e9-4b303db39e09	stock.low	order	1	{"n": 41, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	43	\N	2026-11-16 23:33:59.119009+00	\N	01a1e6b5-d6ce-7673-b6e9-4b316564692c	order.created	order	2	{"n": 42, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	44	\N	2026-11-16 23:33:59.119076+00	\N	01a1e6b5-d6cf-703b-9248-36e081a38449	order.paid	order	3	{"n": 43, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	45	\N	2026-11-16 23:33:59.119139+00	\N	01a1e6b5-d6cf-703b-9248-36e1ce616c22	stock.low	order	4	{"n": 44, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	46	\N	2026-11-16 23:33:59.119201+00	\N	01a1e6b5-d6cf-703b-9248-36e27653360d	order.created	order	5	{"n": 45, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	47	\N	2026-11-16 23:33:59.119263+00	\N	01a1e6b5-d6cf-703b-9248-36e3a3cf65cb	order.paid	order	6	{"n": 46, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	48	\N	2026-11-16 23:33:59.119325+00	\N	01a1e6b5-d6cf-703b-9248-36e42b03a085	stock.low	order	7	{"n": 47, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	49	\N	2026-11-16 23:33:59.119395+00	\N	01a1e6b5-d6cf-703b-9248-36e5b0a1a9cf	order.created	order	0	{"n": 48, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	50	\N	2026-11-16 23:33:59.119457+00	\N	01a1e6b5-d6cf-703b-9248-36e6559de9d9	order.paid	order	1	{"n": 49, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	51	\N	2026-11-16 23:33:59.11952+00	\N	01a1e6b5-d6cf-703b-9248-36e71429076c	stock.low	order	2	{"n": 50, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	52	\N	2026-11-16 23:33:59.119583+00	\N	01a1e6b5-d6cf-703b-9248-36e8bd0542c5	order.created	order	3	{"n": 51, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	53	\N	2026-11-16 23:33:59.119661+00	\N	01a1e6b5-d6cf-703b-9248-36e941e91fea	order.paid	order	4	{"n": 52, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	54	\N	2026-11-16 23:33:59.119729+00	\N	01a1e6b5-d6cf-703b-9248-36eabab4b204	stock.low	order	5	{"n": 53, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	55	\N	2026-11-16 23:33:59.119794+00	\N	01a1e6b5-d6cf-703b-9248-36eb245aeddb	order.created	order	6	{"n": 54, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	56	\N	2026-11-16 23:33:59.120125+00	\N	01a1e6b5-d6d0-7791-b3d5-0d86ff5acc8c	order.paid	order	7	{"n": 55, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	57	\N	2026-11-16 23:33:59.120196+00	\N	01a1e6b5-d6d0-7791-b3d5-0d87e025232a	stock.low	order	0	{"n": 56, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	58	\N	2026-11-16 23:33:59.12026+00	\N	01a1e6b5-d6d0-7791-b3d5-0d883b609d39	order.created	order	1	{"n": 57, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	59	\N	2026-11-16 23:33:59.120322+00	\N	01a1e6b5-d6d0-7791-b3d5-0d89b815a10b	order.paid	order	2	{"n": 58, "by": "post", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
727	60	\N	2026-11-16 23:33:59.120384+00	\N	01a1e6b5-d6d0-7791-b3d5-0d8a956ed929	stock.low	order	3	{"n": 59, "by": "card", "text": "\\u00e4\\u2028\\n\\\\"}	\N	\N
728	61	7	2026-11-16 23:33:59.134845+00	\N	01a1e6b5-d6df-7958-9339-b92e08088e06	order.paid	order	1	{"n": 60}	{"traceparent":"00-1-2-3"}	\N
729	62	\N	2026-11-16 23:33:59.151006+00	\N	01a1e6b5-d6ee-746d-bf4b-be2a9ed7466f	order.paid	\N	\N	{"n": 61}	\N	\N
730	63	\N	2026-11-16 23:33:59.166221+00	2026-11-17 00:33:59.159+00	01a1e6b5-d6fd-712c-86cf-097511fc015e	order.paid	order	3	{"n": 62}	\N	\N
761	64	\N	2026-11-16 23:33:59.606892+00	\N	01a1e6b5-d8b6-7096-a911-7597defdc4f6	order.paid	order	7	{"n": 63, "by": "card"}	\N	\N
761	65	\N	2026-11-16 23:33:59.607222+00	\N	01a1e6b5-d8b7-7614-966f-301b2a8d8479	order.paid	order	0	{"n": 64, "by": "card"}	\N	\N
761	66	\N	2026-11-16 23:33:59.607298+00	\N	01a1e6b5-d8b7-7614-966f-301ca75db242	order.paid	order	1	{"n": 65, "by": "card"}	\N	\N
761	67	\N	2026-11-16 23:33:59.607363+00	\N	01a1e6b5-d8b7-7614-966f-301d98ecb36b	order.paid	order	2	{"n": 66, "by": "card"}	\N	\N
761	68	\N	2026-11-16 23:33:59.607426+00	\N	01a1e6b5-d8b7-7614-966f-301eab5d8df7	order.paid	order	3	{"n": 67, "by": "card"}	\N	\N
761	69	\N	2026-11-16 23:33:59.607487+00	\N	01a1e6b5-d8b7-7614-966f-301ff58553b3	order.paid	order	4	{"n": 68, "by": "card"}	\N	\N
761	70	\N	2026-11-16 23:33:59.607548+00	\N	01a1e6b5-d8b7-7614-966f-302077abb522	order.paid	order	5	{"n": 69, "by": "card"}	\N	\N
761	71	\N	2026-11-16 23:33:59.607615+00	\N	01a1e6b5-d8b7-7614-966f-302159d122a3	order.paid	order	6	{"n": 70, "by": "card"}	\N	\N
761	72	\N	2026-11-16 23:33:59.607701+00	\N	01a1e6b5-d8b7-7614-966f-302214b43764	order.paid	order	7	{"n": 71, "by": "card"}	\N	\N
761	73	\N	2026-11-16 23:33:59.607767+00	\N	01a1e6b5-d8b7-7614-966f-30238a833bdd	order.paid	order	0	{"n": 72, "by": "card"}	\N	\N
761	74	\N	2026-11-16 23:33:59.607828+00	\N	01a1e6b5-d8b7-7614-966f-302493ca0fb6	order.paid	order	1	{"n": 73, "by": "card"}	\N	\N
761	75	\N	2026-11-16 23:33:59.607889+00	\N	01a1e6b5-d8b7-7614-966f-3025eb450309	order.paid	order	2	{"n": 74, "by": "card"}	\N	\N
761	76	\N	2026-11-16 23:33:59.60795+00	\N	01a1e6b5-d8b7-7614-966f-3026fe4c0c14	order.paid	order	3	{"n": 75, "by": "card"}	\N	\N
761	77	\N	2026-11-16 23:33:59.60801+00	\N	01a1e6b5-d8b7-7614-966f-30279a23d882	order.paid	order	4	{"n": 76, "by": "card"}	\N	\N
761	78	\N	2026-11-16 23:33:59.60807+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8949ea9d15	order.paid	order	5	{"n": 77, "by": "card"}	\N	\N
761	79	\N	2026-11-16 23:33:59.60813+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8a2a1297aa	order.paid	order	6	{"n": 78, "by": "card"}	\N	\N
761	80	\N	2026-11-16 23:33:59.608189+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8b20edc105	order.paid	order	7	{"n": 79, "by": "card"}	\N	\N
761	81	\N	2026-11-16 23:33:59.60825+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8c6cd3b8ec	order.paid	order	0	{"n": 80, "by": "card"}	\N	\N
761	82	\N	2026-11-16 23:33:59.60831+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8dd954adbb	order.paid	order	1	{"n": 81, "by": "card"}	\N	\N
761	83	\N	2026-11-16 23:33:59.608371+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8eb9050967	order.paid	order	2	{"n": 82, "by": "card"}	\N	\N
761	84	\N	2026-11-16 23:33:59.608433+00	\N	01a1e6b5-d8b8-76cc-8c17-bb8f8fd2e02b	order.paid	order	3	{"n": 83, "by": "card"}	\N	\N
761	85	\N	2026-11-16 23:33:59.608503+00	\N	01a1e6b5-d8b8-76cc-8c17-bb905f74628e	order.paid	order	4	{"n": 84, "by": "card"}	\N	\N
761	86	\N	2026-11-16 23:33:59.608564+00	\N	01a1e6b5-d8b8-76cc-8c17-bb912276e908	order.paid	order	5	{"n": 85, "by": "card"}	\N	\N
761	87	\N	2026-11-16 23:33:59.608623+00	\N	01a1e6b5-d8b8-76cc-8c17-bb92506afcea	order.paid	order	6	{"n": 86, "by": "card"}	\N	\N
761	88	\N	2026-11-16 23:33:59.608708+00	\N	01a1e6b5-d8b8-76cc-8c17-bb93bd7ea69c	order.paid	order	7	{"n": 87, "by": "card"}	\N	\N
761	89	\N	2026-11-16 23:33:59.608772+00	\N	01a1e6b5-d8b8-76cc-8c17-bb94d0103867	order.paid	order	0	{"n": 88, "by": "card"}	\N	\N
761	90	\N	2026-11-16 23:33:59.608833+00	\N	01a1e6b5-d8b8-76cc-8c17-bb950b9f2610	order.paid	order	1	{"n": 89, "by": "card"}	\N	\N
\.


--
-- Data for Name: handled; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.handled (handler, key, hash, at) FROM stdin;
ledger	a	979974244851230194	2026-11-16 23:33:59.720422+00
\.


--
-- Data for Name: idempotency; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.idempotency (tenant, key, event_id, hash, at) FROM stdin;
	once	01a1e6b5-d6df-7958-9339-b92e08088e06	-5463579208478530597	2026-11-16 23:33:59.134845+00
\.


--
-- Data for Name: lane; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.lane (consumer, lane, version, seen, floor, target, next_floor, window_end, pos, claims_from, delivered) FROM stdin;
done	-1	1	1:1:	0	\N	\N	\N	0	0	0
done	0	3	733:733:	63	\N	63	63	0	1831948	62
lanes	-1	1	1:1:	0	\N	\N	\N	0	0	0
lanes	0	4	739:739:	63	\N	63	63	0	2127358	7
lanes	1	4	739:739:	63	\N	63	63	0	3495577	14
lanes	2	4	739:739:	63	\N	63	63	0	4545994	25
lanes	3	3	739:739:	63	\N	63	63	0	6014652	16
global	-1	1	1:1:	0	\N	\N	\N	0	0	0
global	0	3	1:1:	0	741:741:	63	63	63	6408885	62
some	-1	1	1:1:	0	\N	\N	\N	0	0	0
some	0	3	745:745:	63	\N	63	63	0	7479398	20
paused	-1	1	1:1:	0	\N	\N	\N	0	0	0
paused	0	3	748:748:	63	\N	63	63	0	9279092	62
flaky	0	4	752:752:	63	\N	63	63	0	9571117	39
flaky	-1	7	1:1:	0	\N	\N	\N	0	16448546	0
killed	-1	1	1:1:	0	\N	\N	\N	0	0	0
killed	0	4	1:1:	0	763:763:	90	90	40	17899351	20
\.


--
-- Data for Name: mark; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.mark (stream, consumer, hi, lo, at) FROM stdin;
orders	done	5	1	2026-11-16 23:33:59.724569+00
\.


--
-- Data for Name: meta; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.meta (name, value) FROM stdin;
schema_version	1
system_identifier	7708916705656197814
adopted public.shop_outbox	2026-11-16 23:33:59.741737+00
\.


--
-- Data for Name: parked; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.parked (consumer, seq, key, attempts, due_at, wait, careful, delayed, claim, error, failed_at) FROM stdin;
done	63	2569048117582566251	0	2026-11-17 00:33:59.159+00	00:00:00	f	t	\N	\N	\N
lanes	63	2569048117582566251	0	2026-11-17 00:33:59.159+00	00:00:00	f	t	\N	\N	\N
global	63	1	0	2026-11-17 00:33:59.159+00	00:00:00	f	t	\N	\N	\N
paused	63	2569048117582566251	0	2026-11-17 00:33:59.159+00	00:00:00	f	t	\N	\N	\N
flaky	3	986742248886506414	1	2026-11-16 23:50:00.793758+00	00:16:01.262	f	f	\N	exit status 1: no	2026-11-16 23:33:59.531758+00
flaky	4	2569048117582566251	1	2026-11-17 00:11:37.540758+00	00:37:38.009	f	f	\N	exit status 1: no	2026-11-16 23:33:59.531758+00
flaky	11	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	12	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	19	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	20	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	27	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	28	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	35	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	36	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	43	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	44	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	51	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	52	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	59	986742248886506414	0	\N	00:00:00	f	f	\N	\N	\N
flaky	60	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	63	2569048117582566251	0	\N	00:00:00	f	f	\N	\N	\N
flaky	5	-437275623500177907	0	2026-11-16 23:33:59.590889+00	00:00:00	f	f	\N	\N	\N
\.


--
-- Data for Name: receipt; Type: TABLE DATA; Schema: outbox; Owner: -
--

COPY outbox.receipt (consumer, seq, event_id, sink_id, at) FROM stdin;
done	1	01a1e6b5-d6ca-74e4-97bb-203f3e34eb56	\N	2026-11-16 23:33:59.200575+00
done	2	01a1e6b5-d6cc-7366-b8f5-1d979e0f55eb	\N	2026-11-16 23:33:59.200575+00
done	3	01a1e6b5-d6cc-7366-b8f5-1d9800823b40	\N	2026-11-16 23:33:59.200575+00
done	4	01a1e6b5-d6cc-7366-b8f5-1d9909b1c7c6	\N	2026-11-16 23:33:59.200575+00
done	5	01a1e6b5-d6cc-7366-b8f5-1d9a22a5b519	\N	2026-11-16 23:33:59.200575+00
done	6	01a1e6b5-d6cc-7366-b8f5-1d9b372feab4	\N	2026-11-16 23:33:59.200575+00
done	7	01a1e6b5-d6cc-7366-b8f5-1d9c7a8a1725	\N	2026-11-16 23:33:59.200575+00
done	8	01a1e6b5-d6cc-7366-b8f5-1d9d316af727	\N	2026-11-16 23:33:59.200575+00
done	9	01a1e6b5-d6cc-7366-b8f5-1d9edb00fe55	\N	2026-11-16 23:33:59.200575+00
done	10	01a1e6b5-d6cc-7366-b8f5-1d9ff4f8bd21	\N	2026-11-16 23:33:59.200575+00
done	11	01a1e6b5-d6cc-7366-b8f5-1da0b61b4f35	\N	2026-11-16 23:33:59.200575+00
done	12	01a1e6b5-d6cc-7366-b8f5-1da14e640e4d	\N	2026-11-16 23:33:59.200575+00
done	13	01a1e6b5-d6cc-7366-b8f5-1da288c687cb	\N	2026-11-16 23:33:59.200575+00
done	14	01a1e6b5-d6cc-7366-b8f5-1da3785ef752	\N	2026-11-16 23:33:59.200575+00
done	15	01a1e6b5-d6cd-7230-94e3-6c25215c1d15	\N	2026-11-16 23:33:59.200575+00
done	16	01a1e6b5-d6cd-7230-94e3-6c2644928d21	\N	2026-11-16 23:33:59.200575+00
done	17	01a1e6b5-d6cd-7230-94e3-6c27378f762c	\N	2026-11-16 23:33:59.200575+00
done	18	01a1e6b5-d6cd-7230-94e3-6c28da638c00	\N	2026-11-16 23:33:59.200575+00
done	19	01a1e6b5-d6cd-7230-94e3-6c29e146af2a	\N	2026-11-16 23:33:59.200575+00
done	20	01a1e6b5-d6cd-7230-94e3-6c2abc67e40a	\N	2026-11-16 23:33:59.200575+00
done	21	01a1e6b5-d6cd-7230-94e3-6c2bd1ae06aa	\N	2026-11-16 23:33:59.200575+00
done	22	01a1e6b5-d6cd-7230-94e3-6c2ca04f44af	\N	2026-11-16 23:33:59.200575+00
done	23	01a1e6b5-d6cd-7230-94e3-6c2d58e8b5b3	\N	2026-11-16 23:33:59.200575+00
done	24	01a1e6b5-d6cd-7230-94e3-6c2ee5b195aa	\N	2026-11-16 23:33:59.200575+00
done	25	01a1e6b5-d6cd-7230-94e3-6c2f6e385907	\N	2026-11-16 23:33:59.200575+00
done	26	01a1e6b5-d6cd-7230-94e3-6c3067500416	\N	2026-11-16 23:33:59.200575+00
done	27	01a1e6b5-d6cd-7230-94e3-6c31ee22aa59	\N	2026-11-16 23:33:59.200575+00
done	28	01a1e6b5-d6cd-7230-94e3-6c32d4ceb6da	\N	2026-11-16 23:33:59.200575+00
done	29	01a1e6b5-d6ce-7673-b6e9-4b234123146b	\N	2026-11-16 23:33:59.200575+00
done	30	01a1e6b5-d6ce-7673-b6e9-4b24faa6447d	\N	2026-11-16 23:33:59.200575+00
done	31	01a1e6b5-d6ce-7673-b6e9-4b25474cff21	\N	2026-11-16 23:33:59.200575+00
done	32	01a1e6b5-d6ce-7673-b6e9-4b2684c2c3ea	\N	2026-11-16 23:33:59.200575+00
done	33	01a1e6b5-d6ce-7673-b6e9-4b2734562fa9	\N	2026-11-16 23:33:59.200575+00
done	34	01a1e6b5-d6ce-7673-b6e9-4b289d0f7352	\N	2026-11-16 23:33:59.200575+00
done	35	01a1e6b5-d6ce-7673-b6e9-4b2989d23628	\N	2026-11-16 23:33:59.200575+00
done	36	01a1e6b5-d6ce-7673-b6e9-4b2abf78c61b	\N	2026-11-16 23:33:59.200575+00
done	37	01a1e6b5-d6ce-7673-b6e9-4b2b988e9142	\N	2026-11-16 23:33:59.200575+00
done	38	01a1e6b5-d6ce-7673-b6e9-4b2c95d1df30	\N	2026-11-16 23:33:59.200575+00
done	39	01a1e6b5-d6ce-7673-b6e9-4b2d474ab443	\N	2026-11-16 23:33:59.200575+00
done	40	01a1e6b5-d6ce-7673-b6e9-4b2e64a6c22b	\N	2026-11-16 23:33:59.200575+00
done	41	01a1e6b5-d6ce-7673-b6e9-4b2f875c4af0	\N	2026-11-16 23:33:59.200575+00
done	42	01a1e6b5-d6ce-7673-b6e9-4b303db39e09	\N	2026-11-16 23:33:59.200575+00
done	43	01a1e6b5-d6ce-7673-b6e9-4b316564692c	\N	2026-11-16 23:33:59.200575+00
done	44	01a1e6b5-d6cf-703b-9248-36e081a38449	\N	2026-11-16 23:33:59.200575+00
done	45	01a1e6b5-d6cf-703b-9248-36e1ce616c22	\N	2026-11-16 23:33:59.200575+00
done	46	01a1e6b5-d6cf-703b-9248-36e27653360d	\N	2026-11-16 23:33:59.200575+00
done	47	01a1e6b5-d6cf-703b-9248-36e3a3cf65cb	\N	2026-11-16 23:33:59.200575+00
done	48	01a1e6b5-d6cf-703b-9248-36e42b03a085	\N	2026-11-16 23:33:59.200575+00
done	49	01a1e6b5-d6cf-703b-9248-36e5b0a1a9cf	\N	2026-11-16 23:33:59.200575+00
done	50	01a1e6b5-d6cf-703b-9248-36e6559de9d9	\N	2026-11-16 23:33:59.200575+00
done	51	01a1e6b5-d6cf-703b-9248-36e71429076c	\N	2026-11-16 23:33:59.200575+00
done	52	01a1e6b5-d6cf-703b-9248-36e8bd0542c5	\N	2026-11-16 23:33:59.200575+00
done	53	01a1e6b5-d6cf-703b-9248-36e941e91fea	\N	2026-11-16 23:33:59.200575+00
done	54	01a1e6b5-d6cf-703b-9248-36eabab4b204	\N	2026-11-16 23:33:59.200575+00
done	55	01a1e6b5-d6cf-703b-9248-36eb245aeddb	\N	2026-11-16 23:33:59.200575+00
done	56	01a1e6b5-d6d0-7791-b3d5-0d86ff5acc8c	\N	2026-11-16 23:33:59.200575+00
done	57	01a1e6b5-d6d0-7791-b3d5-0d87e025232a	\N	2026-11-16 23:33:59.200575+00
done	58	01a1e6b5-d6d0-7791-b3d5-0d883b609d39	\N	2026-11-16 23:33:59.200575+00
done	59	01a1e6b5-d6d0-7791-b3d5-0d89b815a10b	\N	2026-11-16 23:33:59.200575+00
done	60	01a1e6b5-d6d0-7791-b3d5-0d8a956ed929	\N	2026-11-16 23:33:59.200575+00
done	61	01a1e6b5-d6df-7958-9339-b92e08088e06	\N	2026-11-16 23:33:59.200575+00
done	62	01a1e6b5-d6ee-746d-bf4b-be2a9ed7466f	\N	2026-11-16 23:33:59.200575+00
\.


--
-- Data for Name: shop_outbox; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.shop_outbox (id, aggregatetype, aggregateid, type, payload) FROM stdin;
\.


--
-- Name: epoch; Type: SEQUENCE SET; Schema: outbox; Owner: -
--

SELECT pg_catalog.setval('outbox.epoch', 17, true);


--
-- Name: event_seq_seq; Type: SEQUENCE SET; Schema: outbox; Owner: -
--

SELECT pg_catalog.setval('outbox.event_seq_seq', 90, true);


--
-- Name: claim claim_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.claim
    ADD CONSTRAINT claim_pkey PRIMARY KEY (consumer, epoch);


--
-- Name: consumer consumer_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.consumer
    ADD CONSTRAINT consumer_pkey PRIMARY KEY (name);


--
-- Name: dead dead_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (consumer, seq);


--
-- Name: event event_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (seq);


--
-- Name: handled handled_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.handled
    ADD CONSTRAINT handled_pkey PRIMARY KEY (handler, key);


--
-- Name: idempotency idempotency_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (key, tenant);


--
-- Name: lane lane_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (consumer, lane, version);


--
-- Name: mark mark_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.mark
    ADD CONSTRAINT mark_pkey PRIMARY KEY (stream, consumer);


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);


--
-- Name: parked parked_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (consumer, seq);


--
-- Name: receipt receipt_pkey; Type: CONSTRAINT; Schema: outbox; Owner: -
--

ALTER TABLE ONLY outbox.receipt
    ADD CONSTRAINT receipt_pkey PRIMARY KEY (consumer, seq);


--
-- Name: shop_outbox shop_outbox_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.shop_outbox
    ADD CONSTRAINT shop_outbox_pkey PRIMARY KEY (id);


--
-- Name: event_xid; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX event_xid ON outbox.event USING btree (xid, seq);


--
-- Name: handled_at; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX handled_at ON outbox.handled USING btree (at);


--
-- Name: idempotency_at; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX idempotency_at ON outbox.idempotency USING btree (at);


--
-- Name: parked_claim; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX parked_claim ON outbox.parked USING btree (consumer, claim) WHERE (claim IS NOT NULL);


--
-- Name: parked_due; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX parked_due ON outbox.parked USING btree (consumer, due_at, seq) WHERE ((claim IS NULL) AND (due_at IS NOT NULL));


--
-- Name: parked_key; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX parked_key ON outbox.parked USING btree (consumer, key, seq);


--
-- Name: receipt_at; Type: INDEX; Schema: outbox; Owner: -
--

CREATE INDEX receipt_at ON outbox.receipt USING btree (at);


--
-- Name: event ring; Type: TRIGGER; Schema: outbox; Owner: -
--

CREATE TRIGGER ring BEFORE INSERT ON outbox.event FOR EACH STATEMENT EXECUTE FUNCTION outbox.ring();


--
-- Name: shop_outbox adopted_16587; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER adopted_16587 AFTER INSERT ON public.shop_outbox FOR EACH ROW WHEN (true) EXECUTE FUNCTION outbox.adopted_16587();


--
-- Name: claim; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.claim ENABLE ROW LEVEL SECURITY;

--
-- Name: consumer; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.consumer ENABLE ROW LEVEL SECURITY;

--
-- Name: dead; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.dead ENABLE ROW LEVEL SECURITY;

--
-- Name: event; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.event ENABLE ROW LEVEL SECURITY;

--
-- Name: idempotency; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.idempotency ENABLE ROW LEVEL SECURITY;

--
-- Name: lane; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.lane ENABLE ROW LEVEL SECURITY;

--
-- Name: mark; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.mark ENABLE ROW LEVEL SECURITY;

--
-- Name: parked; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.parked ENABLE ROW LEVEL SECURITY;

--
-- Name: receipt; Type: ROW SECURITY; Schema: outbox; Owner: -
--

ALTER TABLE outbox.receipt ENABLE ROW LEVEL SECURITY;

--
-- Name: dead redrive; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY redrive ON outbox.dead AS RESTRICTIVE FOR UPDATE USING (true) WITH CHECK (((NOT retrying) OR has_table_privilege(('outbox.event'::regclass)::oid, 'DELETE'::text)));


--
-- Name: dead remove; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY remove ON outbox.dead AS RESTRICTIVE FOR DELETE USING ((retrying OR has_table_privilege(('outbox.event'::regclass)::oid, 'DELETE'::text)));


--
-- Name: claim tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.claim USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: consumer tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.consumer USING (((COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = ''::text) OR (COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = tenant)));


--
-- Name: dead tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.dead USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: event tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.event USING (((COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = ''::text) OR (COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = tenant)));


--
-- Name: idempotency tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.idempotency USING (((COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = ''::text) OR (COALESCE(current_setting('outbox.tenant'::text, true), ''::text) = tenant)));


--
-- Name: lane tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.lane USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: mark tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.mark USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: parked tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.parked USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: receipt tenant; Type: POLICY; Schema: outbox; Owner: -
--

CREATE POLICY tenant ON outbox.receipt USING ((consumer IN ( SELECT c.name
   FROM outbox.consumer c)));


--
-- Name: FUNCTION adopt(source text, shape text, columns jsonb, existing text, OUT adopted boolean, OUT copied bigint); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.adopt(source text, shape text, columns jsonb, existing text, OUT adopted boolean, OUT copied bigint) FROM PUBLIC;


--
-- Name: FUNCTION adopt_trigger(tab regclass, shape text, columns jsonb); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.adopt_trigger(tab regclass, shape text, columns jsonb) FROM PUBLIC;


--
-- Name: FUNCTION adopted_16587(); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.adopted_16587() FROM PUBLIC;


--
-- Name: FUNCTION allow(part text, role text); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.allow(part text, role text) FROM PUBLIC;


--
-- Name: FUNCTION disallow(part text, role text); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.disallow(part text, role text) FROM PUBLIC;


--
-- Name: FUNCTION unadopt(source text); Type: ACL; Schema: outbox; Owner: -
--

REVOKE ALL ON FUNCTION outbox.unadopt(source text) FROM PUBLIC;


--
-- PostgreSQL database dump complete
--

\unrestrict oYAgSRAZGajKck0qPapYgneCONLUz58e3S9V6Hrd2brZF1LXzKa3dbZ1Xqtd2HK

