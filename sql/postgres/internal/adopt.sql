-- Adopting a table of the application: who may, what was adopted, and doing it again after an
-- upgrade.

-- _adopt_source finds a table by its name: as SQL writes it (shop."Outbox"), or just as it is
-- called. Without a schema the name must be that of one table only: which of several a search_path
-- finds first depends on any role that may create tables in it. Raises an error if there is no such
-- table, or none that can be adopted.
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

-- _adopt_trusts returns why the outbox's owner must not mark rows of a table; NULL if it may.
--
-- An UPDATE runs what others put on the table: triggers, constraints, indexes, and the functions
-- that these call, all with the rights of the role that updates. They could leave a trigger behind
-- for the end of the transaction, or change the session. So rows are marked only if every role
-- concerned may act as the outbox's owner anyway: the owners of the table, of its partitions, and
-- of the functions that its UPDATE triggers call.
CREATE OR REPLACE FUNCTION @schema@._adopt_trusts(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    -- o: who owns the outbox; t: the table and its partitions; x: whose code an UPDATE runs
    WITH o AS (SELECT c.relowner AS owner FROM pg_catalog.pg_class c
               WHERE c.oid = '@schema@.event'::regclass),
    t AS (SELECT tab::oid AS oid
          UNION
          SELECT p.relid FROM pg_partition_tree(tab) p)
    SELECT format('%s role "%s", which could have %s run with the rights of "%s", '
                  'the outbox''s owner',
                  x.what, pg_get_userbyid(x.owner), x.code, pg_get_userbyid(o.owner))
    FROM o,
         (SELECT 0 AS rank, 'table ' || c.oid::regclass || ' belongs to' AS what,
                 'code of its own' AS code, c.relowner AS owner
          FROM t
          JOIN pg_catalog.pg_class c ON c.oid = t.oid
          UNION ALL
          SELECT 1, format('trigger "%s" of table %s calls a function of',
                           g.tgname, g.tgrelid::regclass), 'it', f.proowner
          FROM t
          JOIN pg_catalog.pg_trigger g
            ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgtype & 16 <> 0 -- on UPDATE
          JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid) x
    WHERE NOT pg_has_role(x.owner, o.owner, 'MEMBER')
    ORDER BY x.rank -- a table's owner is the better reason
    LIMIT 1
$outbox$;

-- _adopt_decided raises an error where it is unknown which rows of a table became events before,
-- unless `existing` ('copy' or 'skip'; NULL: not given) decides what happens to them. there:
-- whether the table is adopted now.
CREATE OR REPLACE FUNCTION @schema@._adopt_decided(tab regclass, there boolean, existing text)
RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF existing NOT IN ('copy', 'skip') THEN
        RAISE EXCEPTION 'existing "%" is not one of copy, skip', existing
            USING ERRCODE = 'OB004';
    END IF;
    IF there AND existing = 'copy' THEN
        RAISE EXCEPTION 'table % is adopted: its rows became events when it was, and copied again '
                        'they would be delivered twice', tab
            USING ERRCODE = 'OB001', HINT = 'leave existing out, or undo the adoption first';
    END IF;
    -- It was adopted once, and is not now. Rows from that time have become events, later ones have
    -- not, and the table does not tell them apart.
    IF NOT there AND existing IS NULL
       AND EXISTS (SELECT 1 FROM @schema@.meta m WHERE m.name = @schema@._adopted_name(tab)) THEN
        RAISE EXCEPTION 'table % was adopted before, and which of its rows became events then '
                        'cannot be told', tab
            USING ERRCODE = 'OB001',
                  HINT = 'existing copy makes events of all that are not processed; '
                         'existing skip begins with new ones';
    END IF;
END
$outbox$;

-- _adopted_name returns the name under which meta remembers that a table was adopted once. It is
-- made of the table's name, not of its oid, which a dump and restore would change.
CREATE OR REPLACE FUNCTION @schema@._adopted_name(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    SELECT format('adopted %I.%I', c.relnamespace::regnamespace::text, c.relname)
    FROM pg_catalog.pg_class c
    WHERE c.oid = tab
$outbox$;

-- _adopted returns the name of the trigger that makes events of a table's rows; NULL if the
-- table is not adopted.
CREATE OR REPLACE FUNCTION @schema@._adopted(tab regclass) RETURNS name
LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgname
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = tab
      AND p.pronamespace = '@schema@'::regnamespace
      AND p.proname LIKE E'adopted\\_%'
$outbox$;

-- _adopted_mark returns the sentence that the function of such a trigger carries if it is of the
-- kind that runs nothing of the table owner's. The text is stored in databases and stays as it is.
CREATE OR REPLACE FUNCTION @schema@._adopted_mark() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'Of the row nothing is used but what output functions write';

-- _adopted_formerly returns the adopted tables whose function was made by an earlier version: it
-- runs casts of the table's owner with the rights of the outbox's. init brings them up to date,
-- unless a table's columns have changed since, or this role may not touch its trigger.
CREATE OR REPLACE FUNCTION @schema@._adopted_formerly() RETURNS SETOF regclass
LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgrelid::regclass
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE p.pronamespace = '@schema@'::regnamespace
      AND p.proname LIKE E'adopted\\_%'
      AND t.tgparentid = 0 -- not once more for each partition
      AND strpos(p.prosrc, @schema@._adopted_mark()) = 0
$outbox$;

-- _adopt_again brings the trigger functions of adopted tables up to date. init calls it, because a
-- new version may make an event of a row in another way. A table that can no longer be adopted as
-- it was, because its columns have changed, keeps the function it has, with a warning (see
-- _adopted_formerly).
CREATE OR REPLACE FUNCTION @schema@._adopt_again() RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    a record;
BEGIN
    -- The first line of such a function is a comment with its mapping: -- {"id": "id", ...}.
    FOR a IN SELECT t.tgrelid::regclass AS tab
             FROM pg_catalog.pg_trigger t
             JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
             WHERE p.pronamespace = '@schema@'::regnamespace
               AND p.proname LIKE 'adopted\_%'
               AND p.prosrc LIKE '-- {%' LOOP
        BEGIN
            PERFORM @schema@._adopt_anew(a.tab);
        EXCEPTION WHEN SQLSTATE 'OB003' OR SQLSTATE 'OB004' OR insufficient_privilege THEN
            -- One such table must not keep init from installing the rest; `doctor` reports it, too.
            RAISE WARNING 'table % has to be adopted again: %', a.tab, SQLERRM;
        END;
    END LOOP;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_again() FROM PUBLIC;

-- _adopt_anew makes the trigger of an adopted table anew, with the mapping of columns that it has.
-- Returns whether that changed anything; false also for a table that is not adopted.
CREATE OR REPLACE FUNCTION @schema@._adopt_anew(tab regclass) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    -- the function's first line, without the "-- "
    mapping jsonb := (SELECT substr(split_part(p.prosrc, E'\n', 1), 4)
                      FROM pg_catalog.pg_trigger t
                      JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                      WHERE t.tgrelid = tab AND t.tgname = @schema@._adopted(tab));
    shape text := CASE WHEN mapping ? 'processed_at' OR NOT mapping ? 'aggregate_type'
                       THEN 'processed_at' ELSE 'debezium' END;
BEGIN
    IF mapping IS NULL THEN
        RETURN false;
    END IF;
    -- An optional column that the table did not have then is not looked for now.
    mapping := '{"id": "", "created_at": "", "processed_at": ""}' || mapping;
    RETURN @schema@._adopt_trigger(tab, shape, mapping);
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_anew(regclass) FROM PUBLIC;
