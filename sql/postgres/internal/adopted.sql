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
COMMENT ON FUNCTION @schema@._adopted(regclass) IS 'the trigger of an adopted table';

-- _adopted_mark returns the sentence that the function of such a trigger carries if it is of the
-- kind that runs nothing of the table owner's. The text is stored in databases and stays as it is.
CREATE OR REPLACE FUNCTION @schema@._adopted_mark() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'Of the row nothing is used but what output functions write';
COMMENT ON FUNCTION @schema@._adopted_mark() IS
    'what tells a function of an adopted table from those of earlier versions';

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
COMMENT ON FUNCTION @schema@._adopted_formerly() IS 'adopted tables that have to be adopted again';
