-- disallow takes a part from a role; what its other parts need stays. consumer: only that one is
-- taken, named as it was given; the last one takes the part along. Returns whether the role had it.
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
        -- It still may work on others, and keeps the part.
        IF EXISTS (SELECT 1 FROM @schema@.worker w WHERE w.role = disallow.role) THEN
            RETURN had_consumer;
        END IF;
    END IF;

    -- Everything that belongs to the part goes; what other parts have in common with it comes back.
    -- The schema itself is looked at last.
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

    -- That was its last part: it is held to no tenant any more.
    DELETE FROM @schema@.held h WHERE h.role = disallow.role;
    -- The schema may be the application's as well: it stays open while the role has anything in it.
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
