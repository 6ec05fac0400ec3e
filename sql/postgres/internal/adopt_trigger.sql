-- _adopt_trigger makes the trigger of an adopted table, or brings it up to date, with a function of
-- its own that knows the table's columns. Returns whether that changed anything.
--
-- The function runs with the rights of the outbox's owner, because the old producer has no rights
-- on the outbox. So all it does with a row is to have its columns written out as text (see
-- _adopt_values), whatever they have become since. Its first line says which column is which field,
-- for _adopt_anew. Where rows are to be marked, it also records which row became which event.
CREATE OR REPLACE FUNCTION @schema@._adopt_trigger(tab regclass, shape text, columns jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    v record;
    old record;
    name text := 'adopted_' || tab::oid;
    f text;
    mapping text := (SELECT jsonb_object_agg(c.field, c.col)::text
                     FROM @schema@._adopt_columns(tab, shape, columns) c);
    insert_sql text;
    marking record;
    body text;
    owner text := (SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
                   WHERE c.oid = '@schema@.event'::regclass);
BEGIN
    -- The name of the function: the one it has, or one that is free.
    SELECT p.proname, p.prosrc
    INTO old
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = tab AND t.tgname = @schema@._adopted(tab);
    IF FOUND THEN
        name := old.proname;
    ELSE
        -- A restored dump brings functions along whose oids are those of other tables here.
        WHILE to_regprocedure(format('%s.%I()', '@schema@', name)) IS NOT NULL LOOP
            name := name || '_';
        END LOOP;
    END IF;
    f := format('%s.%I()', '@schema@', name);

    -- Its body.
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 'NEW');
    insert_sql := format('INSERT INTO %s (%s) SELECT %s FROM (SELECT %s) t',
                         '@schema@.event', v.targets, v.expressions, v.texts);
    SELECT m.id, @schema@._adopt_key(m.keys, 'NEW') AS key
    INTO marking
    FROM @schema@.marking m
    WHERE m.tab = _adopt_trigger.tab;
    IF FOUND THEN
        insert_sql := format(E'WITH e AS (%s RETURNING seq)\n'
                             '    INSERT INTO %s (marking, seq, key) SELECT %s, e.seq, %s FROM e',
                             insert_sql, '@schema@.adopted_row', marking.id, marking.key);
    END IF;
    -- The setting lets in a row's own UUID, see _keeps_id.
    body := format(E'-- %s\nBEGIN -- %s.\n'
                   '    PERFORM pg_catalog.set_config(%L, %L, true);\n    %s;\n'
                   '    PERFORM pg_catalog.set_config(%3$L, %6$L, true);\n    RETURN NULL;\nEND',
                   mapping, @schema@._adopted_mark(), 'outbox.keep_ids', 'on', insert_sql, '');
    IF old.prosrc = body THEN
        RETURN false;
    END IF;

    -- ISO dates, whatever the session of the old producer has set: the texts are read again.
    EXECUTE format('CREATE OR REPLACE FUNCTION %s RETURNS trigger '
                   'LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET datestyle = ISO AS %L', f, body);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, 'makes events of the rows of ' || tab);
    -- With the same mapping only the function has changed, and the trigger stays as it is.
    IF split_part(old.prosrc, E'\n', 1) IS DISTINCT FROM '-- ' || mapping THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN (%s) '
                       'EXECUTE FUNCTION %s', name, tab, v.unprocessed, f);
    END IF;
    -- If a superuser adopts the table, the function still runs as the outbox's owner.
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
    END IF;
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_trigger(regclass, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION @schema@._adopt_trigger(regclass, text, jsonb) IS
    'makes the trigger of an adopted table';

-- _adopt_key returns an SQL expression for the key columns of a row r, as an array of texts.
CREATE OR REPLACE FUNCTION @schema@._adopt_key(keys name[], r text) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT format('ARRAY[%s]',
                  string_agg(format('pg_catalog.concat(%s.%I)', r, k.name), ', ' ORDER BY k.n))
    FROM unnest(keys) WITH ORDINALITY k (name, n)
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_key(name[], text) IS
    'what tells a row of an adopted table apart';
