-- disallow: takes a part from a role; what its other parts need stays. Returns whether it had it.
CREATE OR REPLACE FUNCTION @schema@.disallow(part text, role text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    had text[] := ARRAY(SELECT @schema@.parts(role));
    r record;
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role USING ERRCODE = 'OB003';
    END IF;
    IF part <> ALL (had) THEN
        RETURN false;
    END IF;
    FOR r IN SELECT * FROM @schema@.rights(part) x WHERE x.kind <> 'SCHEMA' LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %I', r.kind, r.object, role);
    END LOOP;
    PERFORM @schema@.allow(h, role) FROM unnest(had) AS h WHERE h <> part;
    -- The schema may be the application's as well: it stays open while the role has anything in it.
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) x, pg_catalog.pg_roles g
                   WHERE c.relnamespace = '@schema@'::regnamespace AND g.rolname = role AND x.grantee = g.oid)
       AND cardinality(had) = 1 THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', '@schema@', role);
    END IF;
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.disallow(text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.disallow(text, text) IS 'takes a part from a role';
