-- _acting_for: for which tenant a role acts on this connection; '': for the platform, which has to do with all. One that is held to
-- a tenant acts for that, whatever the connection says (outbox.tenant); one that is held to several, for the one it names among
-- them. NULL: for none.
-- It runs with the rights of whoever asks: everybody learns this of himself (held_here), and of others only who may read held.
CREATE OR REPLACE FUNCTION @schema@._acting_for(who name) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name has its schema.
    said pg_catalog.text := coalesce(pg_catalog.current_setting('outbox.tenant', true), '');
    tenants pg_catalog.text[];
BEGIN
    IF pg_catalog.pg_relation_size('@schema@.held'::pg_catalog.regclass) OPERATOR(pg_catalog.=) 0 THEN -- nobody ever was: no query
        RETURN said;
    END IF;
    IF who OPERATOR(pg_catalog.=) current_user THEN
        SELECT pg_catalog.array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held_here h;
    ELSE
        SELECT pg_catalog.array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held h WHERE @schema@._inherits(who, h.role);
    END IF;
    -- A superuser has whatever anybody was given, and is held to nothing by that.
    IF tenants IS NULL OR (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) who) THEN
        RETURN said;
    ELSIF pg_catalog.cardinality(tenants) OPERATOR(pg_catalog.=) 1 THEN
        RETURN tenants[1];
    END IF;
    RETURN CASE WHEN said OPERATOR(pg_catalog.=) ANY (tenants) THEN said END;
END
$outbox$;
COMMENT ON FUNCTION @schema@._acting_for(name) IS 'for which tenant a role acts; '''': for the platform';
