-- _adopt_source finds the table that somebody names: as SQL writes it (shop."Outbox"), or just as
-- it is called. Without a schema the name must be that of one table only: which of several a
-- search_path finds first is up to whoever may create tables in it. Raises an error if there is no
-- such table, or none that can be adopted.
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
        NULL; -- not SQL's spelling: it may still be a table's plain name
    END;

    -- With a schema it is clear which table is meant.
    IF cardinality(parts) > 1 THEN
        found := to_regclass(source);
    END IF;
    IF found IS NULL THEN
        -- Outbox means the table outbox, as in SQL, if there is one; otherwise the table "Outbox".
        SELECT array_agg(c.oid::regclass ORDER BY n.nspname)
        INTO all_found
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = CASE WHEN cardinality(parts) = 1
                                    AND EXISTS (SELECT 1 FROM pg_catalog.pg_class x
                                                WHERE x.relname = parts[1])
                               THEN parts[1] ELSE source END
          AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND c.relpersistence <> 't'
          AND n.nspname !~ '^pg_'
          AND n.nspname <> 'information_schema'
          AND n.oid <> '@schema@'::regnamespace
          AND has_schema_privilege(n.oid, 'USAGE');
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
    -- Views and foreign tables were found as well, so that the error can name them.
    PERFORM @schema@._adopt_refuse(found);
    RETURN found;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_source(text) IS 'the table to adopt';

-- _adopt_refuse raises an error if this is nothing that can be adopted, or is no more.
CREATE OR REPLACE FUNCTION @schema@._adopt_refuse(tab regclass) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    kind "char";
    space oid;
    why text;
BEGIN
    SELECT c.relkind, c.relnamespace INTO kind, space FROM pg_catalog.pg_class c WHERE c.oid = tab;
    why := CASE WHEN kind IS NULL THEN 'it is gone'
                WHEN space = '@schema@'::regnamespace THEN 'it is the outbox''s own'
                WHEN kind IN ('v', 'm') THEN 'it is a view'
                WHEN kind = 'f' THEN 'it is a foreign table'
                WHEN kind NOT IN ('r', 'p') THEN 'it is no table' END;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION '% is not a table that can be adopted: %', tab, why USING ERRCODE = 'OB004';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_refuse(regclass) IS 'refuses what cannot be adopted';
