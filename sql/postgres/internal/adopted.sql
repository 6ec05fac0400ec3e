-- _adopted: the trigger that makes events of a table's rows; NULL: there is none.
CREATE OR REPLACE FUNCTION @schema@._adopted(tab regclass) RETURNS name
LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgname FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = $1 AND p.pronamespace = '@schema@'::regnamespace AND p.proname LIKE E'adopted\\_%'
$outbox$;
COMMENT ON FUNCTION @schema@._adopted(regclass) IS 'the trigger of an adopted table';

-- _adopted_mark: what the function of such a trigger says of itself, if it is of a kind that keeps the table's owner out.
CREATE OR REPLACE FUNCTION @schema@._adopted_mark() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'Of the row nothing is used but what output functions write';
COMMENT ON FUNCTION @schema@._adopted_mark() IS 'what tells a function of an adopted table from those of earlier versions';

-- _adopted_formerly: tables whose function is of an earlier version, and runs casts of the table's owner with the rights of the
-- outbox's. init brings them up to date; not one whose columns changed since, or whose trigger this role may not touch.
CREATE OR REPLACE FUNCTION @schema@._adopted_formerly() RETURNS SETOF regclass
LANGUAGE sql STABLE AS $outbox$
    SELECT t.tgrelid::regclass FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname LIKE E'adopted\\_%' AND t.tgparentid = 0
      AND strpos(p.prosrc, @schema@._adopted_mark()) = 0
$outbox$;
COMMENT ON FUNCTION @schema@._adopted_formerly() IS 'adopted tables that have to be adopted again';
