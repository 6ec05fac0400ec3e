-- acting_for: for which tenant a role acts on this connection; '': for the platform, which has to do with all. One that is held to
-- a tenant acts for that, whatever the connection says (outbox.tenant); one that is held to several, for the one it names among
-- them. NULL: for none.
CREATE OR REPLACE FUNCTION @schema@.acting_for(who name) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
DECLARE
    said text := coalesce(current_setting('outbox.tenant', true), '');
    tenants text[];
BEGIN
    IF pg_relation_size('@schema@.held'::regclass) = 0 THEN -- nobody ever was: no query, because every emit asks this
        RETURN said;
    END IF;
    -- A superuser has whatever anybody was given, and is held to nothing by that.
    SELECT array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held h
    WHERE @schema@.inherits(who, h.role) AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = who AND r.rolsuper);
    IF tenants IS NULL THEN
        RETURN said;
    ELSIF cardinality(tenants) = 1 THEN
        RETURN tenants[1];
    END IF;
    RETURN CASE WHEN said = ANY (tenants) THEN said END;
END
$outbox$;
COMMENT ON FUNCTION @schema@.acting_for(name) IS 'for which tenant a role acts; '''': for the platform';
