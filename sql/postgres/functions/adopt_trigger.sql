-- adopt_trigger: makes the trigger of an adopted table, with a function of its own that knows its columns. It runs with the
-- rights of whoever owns the outbox: the old producer needs none.
CREATE OR REPLACE FUNCTION @schema@.adopt_trigger(tab regclass, shape text, columns jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    v record;
    name text := 'adopted_' || tab::oid;
    f text;
    owner text := (SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
                   WHERE c.oid = '@schema@.event'::regclass);
BEGIN
    WHILE to_regprocedure(format('%s.%I()', '@schema@', name)) IS NOT NULL LOOP
        name := name || '_'; -- of a table that had this oid where a dump came from
    END LOOP;
    f := format('%s.%I()', '@schema@', name);
    SELECT * INTO v FROM @schema@.adopt_values(tab, shape, columns, 'NEW');
    EXECUTE format('CREATE FUNCTION %s RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', f,
                   format(E'BEGIN\n    INSERT INTO %s (%s) VALUES (%s);\n    RETURN NULL;\nEND', '@schema@.event', v.targets,
                          v.expressions));
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, 'makes events of the rows of ' || tab);
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION %s', name, tab,
                   v.unprocessed, f);
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
    END IF;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt_trigger(regclass, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt_trigger(regclass, text, jsonb) IS 'makes the trigger of an adopted table';
