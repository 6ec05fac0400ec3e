-- Adoption of an application's table: which can be adopted, its trigger, and its earlier rows.

-- Finds a table that can be adopted by its name, quoted as in SQL (shop."Outbox") or not. Without a
-- schema the name must be unique: a role that may create tables in the search_path could decide
-- which is found.
CREATE OR REPLACE FUNCTION @schema@._adopt_source(source text) RETURNS regclass
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    parts text[];
    all_found regclass[];
    found regclass;
BEGIN
    BEGIN
        parts := parse_ident(source);
    EXCEPTION WHEN data_exception THEN
        NULL; -- not valid SQL, but it may still be the name of a table
    END;

    IF cardinality(parts) > 1 THEN found := to_regclass(source); END IF;
    IF found IS NULL THEN
        -- Outbox means the table outbox, as in SQL, if it exists; otherwise the table "Outbox".
        SELECT array_agg(c.oid::regclass ORDER BY n.nspname) INTO all_found
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = CASE WHEN cardinality(parts) = 1
                                    AND EXISTS (SELECT 1 FROM pg_catalog.pg_class x
                                                WHERE x.relname = parts[1])
                               THEN parts[1] ELSE source END
          AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
          AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
          AND n.oid <> '@schema@'::regnamespace AND has_schema_privilege(n.oid, 'USAGE');
        found := all_found[1];
    END IF;

    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no table %', source
            USING ERRCODE = 'OB003', HINT = 'write it as SQL does, with its schema: shop."Outbox"';
    END IF;
    IF cardinality(all_found) > 1 THEN
        RAISE EXCEPTION 'there are several tables %: %', source, array_to_string(all_found, ', ')
            USING ERRCODE = 'OB004', HINT = 'name one with its schema';
    END IF;
    -- The search includes views and foreign tables, so that the error can name them.
    PERFORM @schema@._adopt_refuse(found);
    RETURN found;
END $outbox$;

-- Raises an error if a relation cannot be adopted, or was dropped.
CREATE OR REPLACE FUNCTION @schema@._adopt_refuse(tab regclass) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    kind "char";
    space oid;
    why text;
BEGIN
    SELECT c.relkind, c.relnamespace INTO kind, space FROM pg_catalog.pg_class c WHERE c.oid = tab;
    why := CASE WHEN kind IS NULL THEN 'it is gone'
                WHEN space = '@schema@'::regnamespace THEN 'it belongs to the outbox'
                WHEN kind IN ('v', 'm') THEN 'it is a view'
                WHEN kind = 'f' THEN 'it is a foreign table'
                WHEN kind NOT IN ('r', 'p') THEN 'it is not a table' END;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION '% is not a table that can be adopted: %', tab, why USING ERRCODE = 'OB004';
    END IF;
END $outbox$;

-- Why the outbox's owner must not mark rows of a table; NULL if it may. An UPDATE runs the table's
-- triggers, constraints and indexes, and their functions, with the rights of the role that updates.
-- So every role concerned must be able to act as the outbox's owner anyway: the owners of the
-- table, of its partitions, and of the functions that its UPDATE triggers call.
CREATE OR REPLACE FUNCTION @schema@._adopt_trusts(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    -- o: the outbox's owner; t: the table and its partitions; x: whose code an UPDATE runs
    WITH o AS (SELECT c.relowner AS owner FROM pg_catalog.pg_class c
               WHERE c.oid = '@schema@.event'::regclass),
    t AS (SELECT tab::oid AS oid UNION SELECT p.relid FROM pg_partition_tree(tab) p)
    SELECT format('%s role "%s", which could have %s run with the rights of "%s", '
                  'the outbox''s owner',
                  x.what, pg_get_userbyid(x.owner), x.code, pg_get_userbyid(o.owner))
    FROM o,
         (SELECT 0 AS rank, 'table ' || c.oid::regclass || ' belongs to' AS what,
                 'its code' AS code, c.relowner AS owner
          FROM t JOIN pg_catalog.pg_class c ON c.oid = t.oid
          UNION ALL
          SELECT 1, format('trigger "%s" of table %s calls a function of',
                           g.tgname, g.tgrelid::regclass), 'it', f.proowner
          FROM t
          JOIN pg_catalog.pg_trigger g
            ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgtype & 16 <> 0 -- on UPDATE
          JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid) x
    WHERE NOT pg_has_role(x.owner, o.owner, 'MEMBER')
    ORDER BY x.rank -- name a table's owner in preference
    LIMIT 1
$outbox$;

-- Raises an error if the table was adopted before, and `existing` ('copy' or 'skip'; NULL: not
-- given) does not decide about its rows: which of them have become events is unknown. adopted:
-- the table is adopted now.
CREATE OR REPLACE FUNCTION @schema@._adopt_decided(tab regclass, adopted boolean, existing text)
RETURNS void LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF existing NOT IN ('copy', 'skip') THEN
        RAISE EXCEPTION 'existing "%" is not one of copy, skip', existing USING ERRCODE = 'OB004';
    END IF;
    IF adopted AND existing = 'copy' THEN
        RAISE EXCEPTION 'table % is already adopted, and its rows became events: copies would be '
                        'delivered again', tab
            USING ERRCODE = 'OB001', HINT = 'omit existing, or undo the adoption first';
    END IF;
    -- The adoption was undone: earlier rows have become events, later ones have not.
    IF NOT adopted AND existing IS NULL
       AND EXISTS (SELECT 1 FROM @schema@.meta m WHERE m.name = @schema@._adopted_name(tab)) THEN
        RAISE EXCEPTION 'table % was adopted before, and it is not known which of its rows became '
                        'events then', tab
            USING ERRCODE = 'OB001',
                  HINT = 'existing copy turns all unprocessed rows into events, '
                         'and existing skip begins with new rows';
    END IF;
END $outbox$;

-- The name under which meta records that a table was adopted. It is derived from the table's name,
-- because a dump and restore changes the oid.
CREATE OR REPLACE FUNCTION @schema@._adopted_name(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT format('adopted %I.%I', c.relnamespace::regnamespace::text, c.relname)
    FROM pg_catalog.pg_class c WHERE c.oid = tab
$outbox$;

-- Lists the triggers of adopted tables, with their functions. The first line of such a function is
-- a comment with its mapping of columns: -- {"id": "id", ...}. inherited: the trigger of a
-- partition, which belongs to the partitioned table.
CREATE OR REPLACE FUNCTION @schema@._adoptions()
RETURNS TABLE (tab regclass, trigger_name name, func regprocedure, func_name name, body text,
               mapping text, inherited boolean) LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgrelid::regclass, t.tgname, p.oid::regprocedure, p.proname, p.prosrc,
           CASE WHEN p.prosrc LIKE '-- {%' THEN substr(split_part(p.prosrc, E'\n', 1), 4) END,
           t.tgparentid <> 0
    FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname LIKE E'adopted\\_%'
$outbox$;

-- The name of the trigger that makes events of a table's rows; NULL if the table is not adopted.
CREATE OR REPLACE FUNCTION @schema@._adopted(tab regclass) RETURNS name
LANGUAGE sql STABLE AS $outbox$
    SELECT a.trigger_name FROM @schema@._adoptions() a WHERE a.tab = _adopted.tab
$outbox$;

-- Replaces the trigger functions of adopted tables. init calls it, because a new version may
-- convert a row to an event differently. A table whose columns have changed so that it cannot be
-- adopted the same way keeps its function, with a warning.
CREATE OR REPLACE FUNCTION @schema@._adopt_again() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    a record;
BEGIN
    FOR a IN SELECT x.tab FROM @schema@._adoptions() x WHERE x.mapping IS NOT NULL LOOP
        BEGIN
            PERFORM @schema@._adopt_renew(a.tab);
        EXCEPTION WHEN SQLSTATE 'OB003' OR SQLSTATE 'OB004' OR insufficient_privilege THEN
            -- One such table must not prevent the rest of init; `doctor` reports it, too.
            RAISE WARNING 'table % has to be adopted again: %', a.tab, SQLERRM;
        END;
    END LOOP;
END $outbox$;

-- Recreates the trigger function of an adopted table with the same mapping of columns. Returns
-- whether that changed anything; false for a table that is not adopted.
CREATE OR REPLACE FUNCTION @schema@._adopt_renew(tab regclass) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    mapping jsonb := (SELECT a.mapping FROM @schema@._adoptions() a
                      WHERE a.tab = _adopt_renew.tab);
    shape text := CASE WHEN mapping ? 'processed_at' OR NOT mapping ? 'aggregate_type'
                       THEN 'processed_at' ELSE 'debezium' END;
BEGIN
    IF mapping IS NULL THEN RETURN false; END IF;
    -- The mapping omits optional columns that the table lacked then; they are not searched for now.
    mapping := '{"id": "", "created_at": "", "processed_at": ""}' || mapping;
    RETURN @schema@._adopt_trigger(tab, shape, mapping);
END $outbox$;

-- Creates or replaces the trigger of an adopted table, and its function. Returns whether that
-- changed anything. The function runs with the rights of the outbox's owner, so it only converts
-- the columns of a row to text (see _adopt_values), even if they have changed since. Its first line
-- records the mapping of columns. If rows are to be marked, it records which became which event.
CREATE OR REPLACE FUNCTION @schema@._adopt_trigger(tab regclass, shape text, columns jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    v record;
    old record; -- the present function
    name text := 'adopted_' || tab::oid;
    f text;
    mapping text := (SELECT jsonb_object_agg(c.field, c.col)::text
                     FROM @schema@._adopt_columns(tab, shape, columns) c);
    insert_sql text;
    body text;
BEGIN
    -- The function keeps its name, or gets an unused one. A restored dump contains functions named
    -- after oids that belong to other tables here.
    SELECT a.func_name, a.body INTO old FROM @schema@._adoptions() a
    WHERE a.tab = _adopt_trigger.tab;
    WHILE old.func_name IS NULL AND to_regprocedure(format('%s.%I()', '@schema@', name)) IS NOT NULL
    LOOP
        name := name || '_';
    END LOOP;
    name := coalesce(old.func_name, name);
    f := format('%s.%I()', '@schema@', name);

    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 'NEW');
    insert_sql := format('INSERT INTO %s (%s) SELECT %s FROM (SELECT %s) t',
                         '@schema@.event', v.targets, v.expressions, v.texts);
    IF v.marking IS NOT NULL THEN
        insert_sql := format(E'WITH e AS (%s RETURNING seq)\n'
                             '    INSERT INTO %s (marking, seq, key) SELECT %s, e.seq, %s FROM e',
                             insert_sql, '@schema@.adopted_row', v.marking, v.key);
    END IF;
    -- The setting allows a row to keep its UUID, see _keeps_id.
    body := format(E'-- %s\nBEGIN\n'
                   '    PERFORM pg_catalog.set_config(%L, %L, true);\n    %s;\n'
                   '    PERFORM pg_catalog.set_config(%2$L, %5$L, true);\n    RETURN NULL;\nEND',
                   mapping, 'outbox.keep_ids', 'on', insert_sql, '');
    IF old.body = body THEN RETURN false; END IF;

    -- ISO dates, regardless of the application's settings, because the texts are parsed again.
    EXECUTE format('CREATE OR REPLACE FUNCTION %s RETURNS trigger '
                   'LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp SET datestyle = ISO AS %L', f, body);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, 'makes events of the rows of ' || tab);
    -- With the same mapping only the function has changed, and the trigger stays.
    IF split_part(old.body, E'\n', 1) IS DISTINCT FROM '-- ' || mapping THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN (%s) '
                       'EXECUTE FUNCTION %s', name, tab, v.unprocessed, f);
    END IF;
    -- If a superuser adopts the table, the function still runs as the outbox's owner.
    IF @schema@._owner() <> current_user THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, @schema@._owner());
    END IF;
    RETURN true;
END $outbox$;

-- Reads the rows of a table that are to become events, as texts, into a materialized view, which
-- the caller drops. Its columns are those of _adopt_values, row_key and row_nr; with count, only
-- their number, n.
--
-- Even planning a query can run code of the table's owner: in an index, a constraint or a policy.
-- So the rows are read with the owner's rights, as the server does when it refreshes a materialized
-- view. That also keeps its functions from leaving behind a setting, a cursor, or a deferred
-- trigger.
CREATE OR REPLACE FUNCTION @schema@._adopt_rows(
    tab regclass, shape text, columns jsonb, count boolean DEFAULT false) RETURNS regclass
LANGUAGE plpgsql VOLATILE
SET datestyle = ISO SET row_security = off SET client_min_messages = warning AS $outbox$
DECLARE
    v record;
    c record;
    from_table text;
    query text;
    rows regclass;
    could boolean;
BEGIN
    SELECT pg_get_userbyid(x.relowner) AS owner, x.relkind INTO c FROM pg_catalog.pg_class x
    WHERE x.oid = tab;
    IF NOT pg_has_role(c.owner, 'USAGE') THEN
        RAISE EXCEPTION 'the rows of table % can be read only with the rights of its owner, "%", '
                        'which role "%" does not have', tab, c.owner, current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'adopt it as a superuser, or as a member of that role; '
                         'or with existing skip, which reads none';
    END IF;

    -- A plain table is read without those that inherit from it, a partitioned one with its
    -- partitions.
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 's');
    from_table := format('FROM %s %s s WHERE %s', CASE c.relkind WHEN 'r' THEN 'ONLY' END, tab,
                         v.unprocessed);
    query := CASE WHEN count THEN 'SELECT pg_catalog.count(*) AS n '
                  ELSE format('SELECT %s, %s::pg_catalog.text[] AS row_key, '
                              'pg_catalog.row_number() OVER (ORDER BY %s) AS row_nr ',
                              v.texts, coalesce(v.key, 'NULL'), v.sort) END || from_table;

    -- The view is created empty and given to the table's owner to be filled. The server requires
    -- that the owner may create objects in the schema, so that right is granted temporarily.
    EXECUTE format('CREATE MATERIALIZED VIEW %s.%I AS %s WITH NO DATA',
                   '@schema@', 'rows_of_' || tab::oid, query);
    rows := to_regclass(format('%s.%I', '@schema@', 'rows_of_' || tab::oid));
    could := has_schema_privilege(c.owner, '@schema@'::regnamespace, 'CREATE');
    IF NOT could THEN
        EXECUTE format('GRANT CREATE ON SCHEMA %s TO %I', '@schema@', c.owner);
    END IF;
    EXECUTE format('ALTER MATERIALIZED VIEW %s OWNER TO %I', rows, c.owner);
    IF NOT could THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM %I', '@schema@', c.owner);
    END IF;
    EXECUTE format('REFRESH MATERIALIZED VIEW %s', rows);
    EXECUTE format('ALTER MATERIALIZED VIEW %s OWNER TO %I', rows, current_user);

    -- While the table's owner owned the view, a trigger or function on the table could have
    -- attached something to the view that would run with our rights when we read it.
    IF EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = rows)
       OR EXISTS (SELECT 1 FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid = rows)
       OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class x
                      WHERE x.oid = rows AND x.relkind = 'm'
                        AND x.relowner = current_user::regrole) THEN
        RAISE EXCEPTION 'the rows of table % cannot be read: code of its owner changed the view '
                        'that reads them', tab USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN rows;
END $outbox$;
