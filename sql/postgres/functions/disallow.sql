-- disallow takes a part from a role. Rights that its other parts need stay. With `consumer`,
-- spelled as it was granted, only that consumer is taken, and the part goes with the last one.
-- Returns whether the role had what was taken.
CREATE OR REPLACE FUNCTION @schema@.disallow(part text, role text, consumer text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    had text[] := ARRAY(SELECT @schema@.parts(role));
    had_consumer boolean;
    r record;
BEGIN
    PERFORM @schema@._check_grant(part, role, consumer);
    IF part <> ALL (had) THEN
        RETURN false;
    END IF;
    IF part = 'consumer' THEN
        DELETE FROM @schema@.worker w
        WHERE w.role = disallow.role
          AND (disallow.consumer IS NULL OR w.consumer = disallow.consumer);
        had_consumer := FOUND;
        -- A role that may still work on others keeps the part.
        IF EXISTS (SELECT 1 FROM @schema@.worker w WHERE w.role = disallow.role) THEN
            RETURN had_consumer;
        END IF;
    END IF;

    -- All rights of the part are revoked, and those that other parts need are granted again. The
    -- schema itself comes last.
    FOR r IN SELECT * FROM @schema@._rights(part) x WHERE x.kind <> 'SCHEMA' LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %I', r.kind, r.object, role);
    END LOOP;
    FOR r IN SELECT v.name FROM @schema@._named_views() v LOOP
        EXECUTE format('REVOKE ALL ON %s.%I FROM %I', '@schema@', r.name, role);
    END LOOP;
    PERFORM @schema@._give(h, role) FROM unnest(had) AS h WHERE h <> part;
    IF cardinality(had) > 1 THEN
        RETURN true;
    END IF;

    -- That was its last part, so nothing holds the role to a tenant now.
    DELETE FROM @schema@.held h WHERE h.role = disallow.role;
    -- The application may have tables in the schema as well. The schema stays open to the role
    -- while it has rights on anything there.
    IF NOT EXISTS (SELECT 1
                   FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) x,
                        pg_catalog.pg_roles g
                   WHERE c.relnamespace = '@schema@'::regnamespace
                     AND g.rolname = role AND x.grantee = g.oid) THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', '@schema@', role);
    END IF;
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@.disallow(text, text, text) IS 'takes a part from a role';
