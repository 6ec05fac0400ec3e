-- Creates a view under a name that is known from another outbox (docs/coming-from.md). meaning is
-- its comment, query its body. The schema may be the application's, so _name_view leaves any other
-- object of that name alone. It recognises the outbox's views by their comment.
CREATE OR REPLACE FUNCTION @schema@._name_view(name text, meaning text, query text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    -- The server would truncate a longer name, possibly to the name of another object.
    IF octet_length(name) > 63 OR EXISTS (
        SELECT 1 FROM pg_catalog.pg_class c
        WHERE c.relnamespace = '@schema@'::regnamespace AND c.relname = _name_view.name
          AND c.relname NOT IN (SELECT v.name FROM @schema@._named_views() v)) THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE OR REPLACE VIEW %s.%I WITH (security_invoker = true) AS %s',
                   '@schema@', name, query);
    EXECUTE format('COMMENT ON VIEW %s.%I IS %L',
                   '@schema@', name, 'a name from elsewhere: ' || meaning);
END $outbox$;

-- The views that _name_view created. inbox: the view shows the inbox, which no consumer may read.
CREATE OR REPLACE FUNCTION @schema@._named_views() RETURNS TABLE (name name, inbox boolean)
LANGUAGE sql STABLE AS $outbox$
    SELECT c.relname, c.relname IN ('event_handled', 'consumed_events')
    FROM pg_catalog.pg_class c
    WHERE c.relnamespace = '@schema@'::regnamespace AND c.relkind = 'v'
      AND starts_with(obj_description(c.oid, 'pg_class'), 'a name from elsewhere: ')
$outbox$;

-- The views depend on other views and on functions, which are about to be replaced. So they are
-- dropped here, and views/names.sql creates them again at the end. If an object of the application
-- depends on a view, the view cannot be dropped: views/names.sql replaces it.
DO $outbox$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT n.name FROM @schema@._named_views() n LOOP
        BEGIN
            EXECUTE format('DROP VIEW %s.%I', '@schema@', v.name);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            NULL;
        END;
    END LOOP;
END $outbox$;
