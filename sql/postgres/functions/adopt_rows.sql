-- adopt_rows: makes a function that reads the rows of a table that are to become events, as texts, and gives its name. It reads
-- with the rights of the table's owner, and no others: to plan a query alone can run what he put into an index, a constraint or a
-- policy. Whoever made it drops it. row_key: what tells a row apart, where rows are to be marked.
CREATE OR REPLACE FUNCTION @schema@.adopt_rows(tab regclass, shape text, columns jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    v record;
    c record;
    key text := coalesce((SELECT @schema@.adopt_key(m.keys, 's') FROM @schema@.marking m WHERE m.tab = adopt_rows.tab), 'NULL');
    f text := format('%s.%I()', '@schema@', 'rows_of_' || tab::oid);
BEGIN
    SELECT pg_get_userbyid(x.relowner) AS owner, x.relkind INTO c FROM pg_catalog.pg_class x WHERE x.oid = tab;
    IF NOT pg_has_role(c.owner, 'USAGE') THEN
        RAISE EXCEPTION 'the rows of table % can be read only with the rights of its owner, "%", which role "%" has not', tab,
            c.owner, current_user USING ERRCODE = 'insufficient_privilege',
            HINT = 'adopt it as a superuser, or as a member of that role; or with existing skip, which reads none';
    END IF;
    SELECT * INTO v FROM @schema@.adopt_values(tab, shape, columns, 's');
    EXECUTE format('CREATE FUNCTION %s RETURNS TABLE (%s, row_key text[]) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
                   'SET datestyle = ISO SET row_security = off AS %L', f,
                   (SELECT string_agg(format('%I text', x.field), ', ' ORDER BY x.ordinality)
                    FROM @schema@.adopt_columns(tab, shape, columns) WITH ORDINALITY x),
                   format('SELECT %s, %s::pg_catalog.text[] FROM %s %s s WHERE %s ORDER BY %s', v.texts, key, CASE c.relkind WHEN 'r' THEN 'ONLY' END, tab,
                          v.unprocessed, v.sort));
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    IF c.owner <> current_user THEN
        PERFORM @schema@.adopt_owner(f, c.owner);
    END IF;
    RETURN f;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt_rows(regclass, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt_rows(regclass, text, jsonb) IS 'a function that reads the rows of a table as its owner';

-- adopt_owner: gives a function to another role. That one has to be able to create functions in the schema, at that moment.
CREATE OR REPLACE FUNCTION @schema@.adopt_owner(f text, owner name) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    could boolean := has_schema_privilege(owner, '@schema@'::regnamespace, 'CREATE');
BEGIN
    IF NOT could THEN
        EXECUTE format('GRANT CREATE ON SCHEMA %s TO %I', '@schema@', owner);
    END IF;
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
    IF NOT could THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM %I', '@schema@', owner);
    END IF;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt_owner(text, name) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt_owner(text, name) IS 'gives a function to another role';
