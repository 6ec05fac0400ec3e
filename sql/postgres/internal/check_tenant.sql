-- _check_tenant: a consumer hands out its own tenant's events only, or the platform's all: worked on by a connection of
-- another tenant it would pass over events, or give away those of others.
CREATE OR REPLACE FUNCTION @schema@._check_tenant(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    tenant text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    IF c.tenant <> tenant THEN
        RAISE EXCEPTION 'consumer "%" belongs to %, this connection to %', c.name,
            CASE c.tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', c.tenant) END,
            CASE tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', tenant) END
            USING ERRCODE = 'OB004', HINT = 'give the consumer another name, or say ?tenant=NAME in the store''s URL';
    END IF;
    IF tenant <> '' AND NOT row_security_active('@schema@.event') AND current_user = @schema@._caller() THEN -- at no door
        RAISE EXCEPTION 'role "%" is above row-level security: consumer "%" would get every tenant''s events', current_user,
            c.name USING ERRCODE = 'OB004', HINT = 'connect as another role';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_tenant(@schema@.consumer) IS 'refuses a consumer of another tenant';
