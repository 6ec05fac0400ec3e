-- _acting_for returns the tenant that a role acts for on this connection; '' stands for the
-- platform, which has access to every tenant. A role that is bound to one tenant acts for that one,
-- whatever the connection says (outbox.tenant). A role that is bound to several acts for the one
-- the connection names among them; NULL if it names none of them.
--
-- The function runs with the rights of its caller. A role may ask about itself, through the view
-- held_here. Only a role that may read the table held can ask about others.
CREATE OR REPLACE FUNCTION @schema@._acting_for(who name) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name has its schema.
    said pg_catalog.text := coalesce(pg_catalog.current_setting('outbox.tenant', true), '');
    tenants pg_catalog.text[];
BEGIN
    -- A table without a page never had a row. Emits come through here, and most
    -- installations bind no role at all: they are spared the query.
    IF pg_catalog.pg_relation_size('@schema@.held'::pg_catalog.regclass)
           OPERATOR(pg_catalog.=) 0 THEN
        RETURN said;
    END IF;

    IF who OPERATOR(pg_catalog.=) current_user THEN
        SELECT pg_catalog.array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held_here h;
    ELSE
        SELECT pg_catalog.array_agg(DISTINCT h.tenant)
        INTO tenants
        FROM @schema@.held h
        WHERE @schema@._inherits(who, h.role);
    END IF;

    -- A superuser inherits every binding there is, and is bound by none of them.
    IF tenants IS NULL
       OR (SELECT r.rolsuper FROM pg_catalog.pg_roles r
           WHERE r.rolname OPERATOR(pg_catalog.=) who) THEN
        RETURN said;
    ELSIF pg_catalog.cardinality(tenants) OPERATOR(pg_catalog.=) 1 THEN
        RETURN tenants[1];
    END IF;
    RETURN CASE WHEN said OPERATOR(pg_catalog.=) ANY (tenants) THEN said END;
END
$outbox$;
COMMENT ON FUNCTION @schema@._acting_for(name) IS
    'for which tenant a role acts; '''': for the platform';
