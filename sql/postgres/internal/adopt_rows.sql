-- _adopt_rows reads the rows of a table that are to become events, as texts, into a materialized
-- view, and returns that view; the caller drops it. Besides the texts of _adopt_values the view has
-- row_key, which tells a row apart where rows are to be marked, and row_nr, their order. With count
-- it has only their number, n.
--
-- Even planning a query can run what the table's owner put into an index, a constraint or a policy.
-- So the rows are read with the owner's rights and no others, as the server does when it refreshes
-- a materialized view of his. That also keeps his functions from leaving anything behind: a
-- setting, a cursor, a trigger for the end of the transaction.
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

    -- While it was his, what he put on the table could have put something on the view, which would
    -- run with our rights when we read it.
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
COMMENT ON FUNCTION @schema@._adopt_rows(regclass, text, jsonb, boolean) IS
    'reads the rows of a table as its owner';

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
COMMENT ON FUNCTION @schema@._adopt_owner(regclass, name) IS
    'gives a materialized view to another role';
