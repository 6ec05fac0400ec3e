-- _check_tenant raises an error unless consumer c belongs to the tenant that this connection works
-- for (outbox.tenant). A consumer gets the events of its own tenant, or of all if it is the
-- platform's. A connection of another tenant would skip some of its events, or be given those of
-- others.
CREATE OR REPLACE FUNCTION @schema@._check_tenant(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    tenant text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    IF c.tenant <> tenant THEN
        RAISE EXCEPTION 'consumer "%" belongs to %, this connection to %', c.name,
            CASE c.tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', c.tenant) END,
            CASE tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', tenant) END
            USING ERRCODE = 'OB004',
                  HINT = 'give the consumer another name, or put ?tenant=NAME in the store''s URL';
    END IF;

    -- Behind a door current_user is the owner, whom row-level security does not apply to; there
    -- every read names the tenant itself, and _admit has checked the caller.
    IF tenant <> '' AND NOT row_security_active('@schema@.event')
       AND current_user = @schema@._caller() THEN
        RAISE EXCEPTION 'row-level security does not apply to role "%": consumer "%" would get '
                        'every tenant''s events', current_user, c.name
            USING ERRCODE = 'OB004',
                  HINT = 'connect as a role that neither owns the outbox nor has BYPASSRLS';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_tenant(@schema@.consumer) IS
    'refuses a consumer of another tenant';
