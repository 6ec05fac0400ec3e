-- The trigger of an adopted table, and the rows that were there before.

-- _adopt_trigger makes the trigger of an adopted table, or brings it up to date, with a function of
-- its own that knows the table's columns. Returns whether that changed anything.
--
-- The function runs with the rights of the outbox's owner, because the old producer has no rights
-- on the outbox. So all it does with a row is to have its columns written out as text (see
-- _adopt_values), even if the columns have changed since. Its first line records which column is
-- which field, for _adopt_anew. Where rows are to be marked, it also records which row became which
-- event.
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
        -- A restored dump contains functions named after oids that belong to other tables here.
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

    -- ISO dates, whatever the application's session has set: the texts are read again.
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

-- _adopt_key returns an SQL expression for the key columns of a row r, as an array of texts.
CREATE OR REPLACE FUNCTION @schema@._adopt_key(keys name[], r text) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT format('ARRAY[%s]',
                  string_agg(format('pg_catalog.concat(%s.%I)', r, k.name), ', ' ORDER BY k.n))
    FROM unnest(keys) WITH ORDINALITY k (name, n)
$outbox$;

-- _adopt_rows reads the rows of a table that are to become events, as texts, into a materialized
-- view, and returns that view; the caller drops it. Besides the texts of _adopt_values the view has
-- row_key, which tells a row apart where rows are to be marked, and row_nr, their order. With count
-- it has only their number, n.
--
-- Even planning a query can run what the table's owner put into an index, a constraint or a policy.
-- So the rows are read with the owner's rights and no others, as the server does when it refreshes
-- a materialized view of that role. That also keeps the owner's functions from leaving anything
-- behind: a setting, a cursor, a trigger for the end of the transaction.
CREATE OR REPLACE FUNCTION @schema@._adopt_rows(
    tab regclass, shape text, columns jsonb, count boolean DEFAULT false) RETURNS regclass
LANGUAGE plpgsql VOLATILE
SET datestyle = ISO SET row_security = off SET client_min_messages = warning AS $outbox$
DECLARE
    v record;
    c record;
    key text := coalesce((SELECT @schema@._adopt_key(m.keys, 's') FROM @schema@.marking m
                          WHERE m.tab = _adopt_rows.tab), 'NULL');
    query text;
    rows regclass;
BEGIN
    SELECT pg_get_userbyid(x.relowner) AS owner, x.relkind
    INTO c
    FROM pg_catalog.pg_class x
    WHERE x.oid = tab;
    IF NOT pg_has_role(c.owner, 'USAGE') THEN
        RAISE EXCEPTION 'the rows of table % can be read only with the rights of its owner, "%", '
                        'which role "%" has not', tab, c.owner, current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'adopt it as a superuser, or as a member of that role; '
                         'or with existing skip, which reads none';
    END IF;

    -- ONLY a plain table: children that inherit from it are tables of their own. Of a partitioned
    -- one, all partitions.
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 's');
    query := format('SELECT %s, %s::pg_catalog.text[] AS row_key, '
                    'pg_catalog.row_number() OVER (ORDER BY %s) AS row_nr FROM %s %s s WHERE %s',
                    v.texts, key, v.sort, CASE c.relkind WHEN 'r' THEN 'ONLY' END, tab,
                    v.unprocessed);
    IF count THEN
        query := format('SELECT pg_catalog.count(*) AS n FROM %s %s s WHERE %s',
                        CASE c.relkind WHEN 'r' THEN 'ONLY' END, tab, v.unprocessed);
    END IF;

    -- The view is made empty, filled as the table's owner, and then taken back.
    EXECUTE format('CREATE MATERIALIZED VIEW %s.%I AS %s WITH NO DATA',
                   '@schema@', 'rows_of_' || tab::oid, query);
    rows := to_regclass(format('%s.%I', '@schema@', 'rows_of_' || tab::oid));
    PERFORM @schema@._adopt_owner(rows, c.owner);
    EXECUTE format('REFRESH MATERIALIZED VIEW %s', rows);
    EXECUTE format('ALTER MATERIALIZED VIEW %s OWNER TO %I', rows, current_user);

    -- While the table's owner owned the view, a trigger or function on the table could have
    -- attached something to the view that would run with our rights when we read it.
    IF EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = rows)
       OR EXISTS (SELECT 1 FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid = rows)
       OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class x
                      WHERE x.oid = rows AND x.relkind = 'm'
                        AND x.relowner = current_user::regrole) THEN
        RAISE EXCEPTION 'the rows of table % cannot be read: what its owner put on it changes what '
                        'reads them', tab
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN rows;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_rows(regclass, text, jsonb, boolean) FROM PUBLIC;

-- _adopt_owner gives a materialized view to another role. The server asks that this role may create
-- objects in the schema, so it is granted that for the moment if it has not got it.
CREATE OR REPLACE FUNCTION @schema@._adopt_owner(rows regclass, owner name) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    could boolean := has_schema_privilege(owner, '@schema@'::regnamespace, 'CREATE');
BEGIN
    IF NOT could THEN
        EXECUTE format('GRANT CREATE ON SCHEMA %s TO %I', '@schema@', owner);
    END IF;
    EXECUTE format('ALTER MATERIALIZED VIEW %s OWNER TO %I', rows, owner);
    IF NOT could THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM %I', '@schema@', owner);
    END IF;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_owner(regclass, name) FROM PUBLIC;
